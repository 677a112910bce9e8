"""The conformance kit: the contract of the operators as cases that any backend can be put to.

A package with a backend of its own tests it with one line in a pytest file::

    test_mybackend = polykern.testing.conformance("mybackend")

Every kernel of the backend then meets every case of its operator, pinned by name. A case that the
kernel refuses is skipped with its reason; a kernel that refuses every case fails. What is right,
and how far off a result may be, is the operators' own float64 reference and error bound.
"""

from polykern.testing.case import Case
from polykern.testing.check import check
from polykern.testing.conform import cases, conformance, kernels, reached

__all__ = ["Case", "cases", "check", "conformance", "kernels", "reached"]
