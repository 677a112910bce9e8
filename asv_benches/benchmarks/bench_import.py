"""An import in a fresh process; NumPy's is most of it."""


class Import:
    def timeraw_polykern(self):
        return "import polykern"

    def timeraw_numpy(self):
        return "import numpy"
