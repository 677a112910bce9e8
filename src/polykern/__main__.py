"""The command ``polykern``: compare the backends on this machine, or tell what is installed."""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

import numpy as np

import polykern
from polykern import doctor, dtypes, registry
from polykern.errors import BackendNotFoundError
from polykern.perf import cases, session, table
from polykern.perf.progress import Progress

_DTYPES = dtypes.FLOATS + dtypes.FLOAT8 + dtypes.INT8


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def _list_of(kind: str, known: Sequence[str]) -> Callable[[str], list[str]]:
    """An argument type: names from `known`, with commas between them."""

    def names(text: str) -> list[str]:
        found = [name.strip() for name in text.split(",")]
        for name in found:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"
                raise argparse.ArgumentTypeError(f"no {kind} {name!r}; {hint}")
        return found

    return names


def _backends(text: str) -> list[str]:
    """An argument type: backends, or kernels of backends, with commas between them."""
    found = [name.strip() for name in text.split(",")]
    for name in found:
        try:
            registry.check(name)
        except BackendNotFoundError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        if registry.split(name)[0] == registry.AUTO:
            raise argparse.ArgumentTypeError("auto only chooses a backend; name what to compare")
    return found


def _shapes() -> str:
    """What ends the help of `compare`."""
    lines = [f"  {op:<10} {form.text:<32} {form.example}" for op, form in cases.FORMS.items()]
    notes = (
        "An activation brings a bias. conv2d pads by half the filter. softmax is along",
        "axis 1 if none is given. A causal diagonal ends in the lower right corner.",
    )
    return "\n".join(["shapes:", *lines, *notes])


def _parser() -> _Parser:
    parser = _Parser(
        prog="polykern", description="gemm, conv2d, softmax and attention on several JIT backends."
    )
    parser.add_argument("--version", action="version", version=f"polykern {polykern.__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND")
    compare = commands.add_parser(
        "compare",
        help="run the operators on every usable backend, print one table",
        description="Run the operators on every usable backend and print one table; a minute.",
        epilog=_shapes(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    compare.set_defaults(run=_compare, parser=compare)
    compare.add_argument(
        "--op",
        type=_list_of("operator", cases.OPERATORS),
        action="extend",
        metavar="NAME",
        help=f"only these of {', '.join(cases.OPERATORS)}; comma list or repeated",
    )
    compare.add_argument(
        "--shape",
        action="append",
        metavar="SHAPE",
        help="instead of the chosen problems, with one --op; may be repeated",
    )
    compare.add_argument(
        "--dtype",
        type=_list_of("dtype", _DTYPES),
        action="extend",
        metavar="NAME",
        help=f"run each problem in these types: {', '.join(_DTYPES)}",
    )
    compare.add_argument(
        "--backend",
        type=_backends,
        action="extend",
        metavar="NAME",
        help="only these backends or kernels, such as numba or numba/packed",
    )
    compare.add_argument("--seed", type=int, metavar="N", help="of the random inputs")
    form = compare.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON instead of the table")
    form.add_argument("--csv", action="store_true", help="print CSV instead of the table")
    doctor_parser = commands.add_parser(
        "doctor",
        help="tell what is installed and usable, and what brings the rest",
        description="Tell versions, processor, cache folder, settings, and the state of every "
        "backend with the command that installs it.",
    )
    doctor_parser.set_defaults(run=_doctor)
    doctor_parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _doctor(options: argparse.Namespace) -> int:
    facts = {"polykern": polykern.__version__, **doctor.examine()}
    print(json.dumps(facts, indent=2) if options.json else doctor.render(facts))
    return 0


def _cases(options: argparse.Namespace) -> list[cases.Case]:
    """The problems asked for; a ValueError where `--shape` is bad."""
    operators = tuple(dict.fromkeys(options.op or cases.OPERATORS))
    asked: list[cases.Case] = []
    for dtype in dict.fromkeys(options.dtype or [None]):
        if options.shape is None:
            asked += cases.chosen(operators, dtype)
        elif len(operators) != 1:
            raise ValueError("--shape needs one operator; add --op NAME")
        else:
            asked += [cases.parse(operators[0], s, dtype or "float32") for s in options.shape]
    return asked


def _compare(options: argparse.Namespace) -> int:
    try:
        asked = _cases(options)
    except ValueError as error:
        options.parser.error(str(error))
    if options.seed is not None and options.seed < 0:
        options.parser.error(f"--seed {options.seed}; it is a whole number from 0")
    runnable, left_out = session.runnable(asked)
    if left_out and (options.shape or not runnable):
        options.parser.error(f"{left_out[0][0]}: {left_out[0][1]}")
    progress = Progress(sys.stderr, len(runnable) + 3)
    progress.begin("importing the backends")
    found = session.candidates()
    usable = {one.name: one.status for one in found}
    backends = options.backend or [name for name, status in usable.items() if status.usable]
    for name in backends:
        status = usable[registry.split(name)[0]]
        if not status.usable:
            progress.end()
            options.parser.error(status.why)
    seed = options.seed
    if seed is None:
        seed = int(np.random.SeedSequence().generate_state(1)[0])
    results = session.run(
        runnable, tuple(dict.fromkeys(backends)), seed, progress, found=found, left_out=left_out
    )
    if options.json:
        print(session.to_json(results))
    elif options.csv:
        print(session.to_csv(results), end="")
    else:
        print(table.render(results))
    return int(any(row.bad for row in results.rows))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code: 0, 1 if a row is wrong or broke, 2 for bad options."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 0
    try:
        return int(options.run(options))
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
