"""Packages of compiled code: built once on a machine, by one process, and loaded in milliseconds.

A process that lacks a package exports the function, and starts another process that compiles it and
shares nothing with its caller: warnings of compilers stay there, and a package that crashes whoever
loads it crashes nobody else. Processes that want the same package meanwhile wait.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from threading import Lock, Thread
from time import sleep
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fnpipe.cache import sweep, turn
from fnpipe.types import NumericsError


LIMIT = 300.0
"""Seconds that building a package may take; 30 to 60 on two cores, 110 on a busy host."""
WAIT = 2 * LIMIT
"""Seconds that a process waits for another's package before it builds one itself."""
BUILD = "import sys; from fnpipe.packages import build; build(*sys.argv[1:])"
"""The program that builds a package and loads it."""
ONCE: dict[str, Any] = {
    # To compile two headers ahead takes 8 to 10 s, and saves 2 of the package that wants them.
    "aot_inductor.precompile_headers": False,
}
"""Inductor options for code that is compiled once."""
_exporting = Lock()
_told: set[str] = set()


def compiler() -> str | None:
    """The C++ compiler that Inductor will use, or None."""
    return shutil.which(os.environ.get("CXX") or "g++")


def load(path: str) -> Callable[..., Any]:
    """The function in a package.

    Not by ``aoti_load_package``: its torch 2.11 first compiles and runs ten programs, 30 to 45 s in
    every process, to warn of a package from another processor; a package's key names that. Errors:
    NumericsError where it cannot be unpacked.
    """
    try:
        runner = torch._C._aoti.AOTIModelPackageLoader(path, "model", False, 1, -1)  # type: ignore[attr-defined]
    except RuntimeError as error:
        raise NumericsError(
            f"{path} cannot be unpacked ({error}): is there room in TMPDIR, "
            f"{os.environ.get('TMPDIR', '/tmp')}? Else remove the package, or use backend='eager'"
        ) from error
    form = pytree.treespec_loads(runner.get_call_spec()[1])
    return lambda *tensors: pytree.tree_unflatten(runner.boxed_run(list(tensors)), form)


def make(
    fn: Callable[..., Any],
    example: tuple[Tensor, ...],
    path: Path,
    *,
    options: dict[str, Any],
    dynamic_shapes: Any = None,
) -> None:
    """See to it that the package ``path`` is there: build it, or wait for who does.

    The file appears whole or not at all. Errors: NumericsError without a C++ compiler, and with one
    that builds no package, or one that cannot be loaded.
    """
    if compiler() is None:
        raise NumericsError(
            "building a package needs a C++ compiler (Debian: apt-get install g++); "
            "without one use backend='eager'"
        )
    with turn(path, wait=WAIT, tell=lambda who: _tell("waiting for", f"{path}, built by {who}")):
        if path.exists():
            return
        sweep(path.parent, ".build-*", ".*.lock")
        sweep(Path(tempfile.gettempdir()), "fnpipe-build-*")
        _tell("building", f"{path}, once: a minute or so")
        with tempfile.TemporaryDirectory(prefix="fnpipe-build-") as scratch:
            exported, built = Path(scratch) / "exported.pt2", Path(scratch) / "package.pt2"
            _export(fn, example, exported, dynamic_shapes)
            _compile(exported, built, options | ONCE)
            _publish(built, path)


def _tell(what: str, rest: str) -> None:
    """On stderr: a terminal each time, else once a process, so that a run's log says why it waits.

    No warning, which some make an error of, nor a line of the output, which programs read.
    """
    if sys.stderr.isatty() or what not in _told:
        _told.add(what)
        print(f"fnpipe: {what} {rest}", file=sys.stderr, flush=True)


def _export(
    fn: Callable[..., Any], example: tuple[Tensor, ...], to: Path, dynamic_shapes: Any
) -> None:
    class Module(torch.nn.Module):
        def forward(self, *tensors: Tensor) -> Any:
            return fn(*tensors)

    shapes = None if dynamic_shapes is None else (tuple(dynamic_shapes),)
    # By the thread that asks: in one made for it the second export of a process crashed torch 2.11.
    with _exporting, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of what is deprecated in it
        exported = torch.export.export(Module(), example, dynamic_shapes=shapes)
        torch.export.save(exported, to)


def _compile(exported: Path, built: Path, options: dict[str, Any]) -> None:
    """Build a package in a process of its own: at first the fast way, then as torch does it.

    Errors: NumericsError where no way leads to a package that can be loaded, and where that process
    takes too long or is ended, as an interrupt of a terminal ends it along with this one.
    """
    told = ""
    for way in ("trusting", "trying"):
        built.unlink(missing_ok=True)
        told, final = _run(str(exported), str(built), json.dumps(options), way)
        if not told:
            return
        if final:
            break
    failed = "built cannot be loaded" if built.exists() else "was given built no package"
    raise NumericsError(
        f"what {compiler()} {failed} ({told}); use another compiler (CXX=...) or backend='eager'"
    )


def _run(*arguments: str) -> tuple[str, bool]:
    """Run :data:`BUILD`; what went wrong, "" if nothing, and whether another run makes no sense."""
    # Modules are found where this process finds them, and no GPU: it may be another's alone.
    path = os.pathsep.join(p or os.getcwd() for p in sys.path)
    command = [sys.executable, "-P", "-W", "ignore", "-c", BUILD, *arguments]
    environment = os.environ | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        return f"not done after {LIMIT:g} s", True
    if done.returncode == 0:
        return "", True
    told = f"exit code {done.returncode}: {done.stderr.strip()[-500:]}"
    return told, -done.returncode in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)


def _publish(built: Path, path: Path) -> None:
    """Put a package in its place, which may be on another disk, at once."""
    descriptor, part = tempfile.mkstemp(dir=path.parent, prefix=".build-")
    os.close(descriptor)
    try:
        shutil.copyfile(built, part)
        os.replace(part, path)
    except BaseException:
        os.unlink(part)
        raise


def build(exported: str, built: str, options: str, way: str) -> None:
    """Compile an exported program to a package and load it: all that a process of its own does.

    "trusting", it takes an instruction set as usable that the processor has and the compiler knows.
    "trying", torch builds a program for each, ten of them, and starts a Python that loads it: 17 s
    of torch 2.14 and 27 s of torch 2.11, which waits for ten imports of torch.
    """
    Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    from torch._inductor import aoti_compile_and_package, cpu_vec_isa

    if way == "trusting":
        cpu_vec_isa.VecISA.check_build = _knows  # type: ignore[method-assign]
    aoti_compile_and_package(
        torch.export.load(exported), package_path=built, inductor_configs=json.loads(options)
    )
    load(built)


def _end_with(parent: int) -> None:
    """End this process when ``parent`` is gone: nobody is left to take what it makes."""
    while os.getppid() == parent:
        sleep(1)
    os._exit(1)


def _knows(instructions: Any, _: str) -> bool:
    """Whether the compiler has the flags of an instruction set."""
    command = [compiler() or "g++", *instructions.build_arch_flags().split()]
    command += ["-fsyntax-only", "-x", "c++", os.devnull]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
