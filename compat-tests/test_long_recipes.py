"""The Testcontainers recipe for Go; part of the soak test `image`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from harness.places import COMPAT, WORK
from test_recipes import recipe

CLIENT = "Testcontainers"


def test_go_recipe_passes_vet(tmp_path: Path) -> None:
    module = (COMPAT / "requirements/testcontainers-go.txt").read_text().strip()
    (tmp_path / "recipe.go").write_text(recipe("go"))
    variables = os.environ | {"GOFLAGS": "-mod=mod -buildvcs=false"}
    go = str(WORK / "go-toolchain/go")
    for command in (["mod", "init", "recipe"], ["get", module], ["vet", "./..."]):
        done = subprocess.run(
            [go, *command], cwd=tmp_path, env=variables, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
