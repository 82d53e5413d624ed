"""The Testcontainers recipes of docs/how-to/install.md: compilers accept them.

Nothing runs, because no container engine is available. `make soak PART=image` runs the start scripts of
the modules, and checks the recipe for Go, because the compilation of its dependencies takes minutes.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from harness.places import ROOT, environment, environment_python, jars

CLIENT = "Testcontainers"


def recipe(language: str) -> str:
    """Return the recipe for a language."""
    page = (ROOT / "docs/how-to/install.md").read_text()
    section = page.partition("\n## Testcontainers\n")[2]
    (code,) = re.findall(rf"(?ms)^```{language}\n(.*?)^```$", section)
    return str(code)


def check(*command: str | Path, cwd: Path) -> None:
    """Run a compiler. Fails with its output if it reports an error."""
    done = subprocess.run([*command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_java_recipe_compiles(tmp_path: Path) -> None:
    (tmp_path / "Recipe.java").write_text(recipe("java"))
    check("javac", "-cp", jars("testcontainers-java"), "Recipe.java", cwd=tmp_path)


def test_python_recipe_passes_type_check(tmp_path: Path) -> None:
    (tmp_path / "recipe.py").write_text(recipe("python"))
    python = environment_python("testcontainers-python")
    mypy = [sys.executable, "-m", "mypy", "--config-file=", "--cache-dir=/dev/null", "--strict"]
    # The module has untyped parts itself.
    options = ["--follow-imports=silent", "--python-executable", str(python)]
    check(*mypy, *options, "recipe.py", cwd=tmp_path)


def test_node_recipe_passes_type_check(tmp_path: Path) -> None:
    modules = environment("testcontainers-node") / "node_modules"
    (tmp_path / "node_modules").symlink_to(modules)
    (tmp_path / "recipe.ts").write_text(recipe("typescript"))
    tsc = [environment("node") / "node", modules / "typescript/bin/tsc"]
    options = ["--strict", "--noEmit", "--skipLibCheck", "--target", "es2022"]
    check(*tsc, *options, "--module", "nodenext", "recipe.ts", cwd=tmp_path)
