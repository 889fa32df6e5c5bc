"""``bundle-web --harness``: the page is part of the bundle, verified and reproducible like the rest of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from build.bundle.verify import inspect
from tests.bundles.support import archive_of, bundle, folder_of
from tests.conftest import ROOT, environment
from tests.web.support import require_browser


@pytest.mark.slow
def test_the_page_is_packed_and_listed(copy: Path, tmp_path: Path) -> None:
    require_browser()
    assert bundle(copy, "web", "--harness", "--precisions", "fp32") == 0
    first = archive_of(folder_of(copy, "web")).read_bytes()
    manifest = inspect(archive_of(folder_of(copy, "web")), tmp_path, lambda line: None, sums_required=True)
    assert manifest["recipe"]["harness"] is True
    listed = {f["path"] for f in manifest["files"]}
    assert {"harness/web/index.html", "harness/web/page.json", "harness/web/bundle.js"} <= listed
    assert "open `harness/web/`" in (tmp_path / "README.md").read_text()
    assert bundle(copy, "web", "--harness", "--precisions", "fp32") == 0
    assert archive_of(folder_of(copy, "web")).read_bytes() == first


@pytest.mark.slow
def test_a_bundle_with_a_page_is_reproduced(copy: Path, tmp_path: Path) -> None:
    """The page and its runtime are packed again in a clean checkout, like the artifact."""
    require_browser()
    assert bundle(copy, "web", "--harness", "--precisions", "fp32") == 0
    command = [sys.executable, "-m", "build.bundle", "reproduce", str(folder_of(copy, "web"))]
    done = subprocess.run(
        [*command, "--json", str(tmp_path / "r.json")],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "r.json").read_text())["differing"] == []


@pytest.mark.parametrize("platform", ["apple", "pc"])
def test_a_platform_without_a_harness_says_so(copy: Path, platform: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bundle(copy, platform, "--harness", "--precisions", "fp32") == 2
    told = capsys.readouterr().err
    assert f"there is no harness for {platform}" in told
    assert f"measure from a checkout: nox -s bench-{platform}" in told
