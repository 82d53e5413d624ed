"""Tests of modules that load on first use. Each runs a program, because it changes `sys.modules`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kbroker.runtime.deferred_imports import RARELY_USED

# The first module prints a line when it loads, and imports the second one, which uses it.
USED = "print('loading'); VALUE = 1; import user; assert user.used.VALUE == 1\n"
USER = "import used\n"


def run(directory: Path, program: str) -> list[str]:
    """Run a program that finds the two modules, and return the lines of its output."""
    (directory / "used.py").write_text(USED)
    (directory / "user.py").write_text(USER)
    setup = f"""
import sys
sys.path.insert(0, {str(directory)!r})
from kbroker.runtime.deferred_imports import defer_imports, is_deferred
"""
    done = subprocess.run(
        [sys.executable, "-c", setup + program], capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr
    return done.stdout.splitlines()


def test_deferred_module_loads_once_on_first_use(tmp_path: Path) -> None:
    program = """
defer_imports(("used", "missing", "sys"))
import used, user
print(is_deferred("used"), is_deferred("sys"), used.__name__)
print(hasattr(used, "OTHER"), is_deferred("used"), used.VALUE, user.used is used)
"""
    assert run(tmp_path, program) == [
        "True False used",
        "loading",
        "False False 1 True",
    ]


def test_from_import_loads_deferred_module(tmp_path: Path) -> None:
    program = """
defer_imports(("used",))
from used import VALUE
print(VALUE, is_deferred("used"))
"""
    assert run(tmp_path, program) == ["loading", "1 False"]


def test_failed_load_is_retried(tmp_path: Path) -> None:
    program = f"""
import pathlib
file = pathlib.Path({str(tmp_path)!r}, "used.py")
defer_imports(("used",))
import used
file.write_text("raise ValueError('at load')")
for _ in range(2):
    try:
        used.VALUE
    except ValueError as error:
        print(error)
file.write_text("VALUE = 2")
print(used.VALUE)
"""
    assert run(tmp_path, program) == ["at load", "at load", "2"]


def test_threads_wait_for_the_load(tmp_path: Path) -> None:
    program = f"""
import pathlib, threading
text = "import threading; started.set(); assert go.wait(60); VALUE = 3"
pathlib.Path({str(tmp_path)!r}, "used.py").write_text("from shared import started, go; " + text)
pathlib.Path({str(tmp_path)!r}, "shared.py").write_text(
    "import threading; started = threading.Event(); go = threading.Event()"
)
import shared
defer_imports(("used",))
import used
values = []
first = threading.Thread(target=lambda: values.append(used.VALUE))
first.start()
assert shared.started.wait(60)
second = threading.Thread(target=lambda: values.append(used.VALUE))
second.start()
shared.go.set()
first.join(60)
second.join(60)
print(*values, sep="\\n")
"""
    assert run(tmp_path, program) == ["3", "3"]


def test_rarely_used_modules_of_this_python_can_be_deferred() -> None:
    program = f"""
from kbroker.runtime.deferred_imports import defer_imports, is_deferred
import sys
for name in {RARELY_USED}:
    sys.modules.pop(name, None)
defer_imports()
import hashlib, hmac, pickle, secrets, ssl
print(ssl.create_default_context() is not None, hashlib.sha256(b"").digest_size)
print(hmac.compare_digest(b"a", b"a"), len(secrets.token_bytes(3)), pickle.loads(pickle.dumps(1)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["True 32", "True 3 1"]
