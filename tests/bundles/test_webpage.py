"""``bundle-web --harness``: the page is part of the bundle, verified and reproducible like the rest of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from build.bundle.verify import inspect
from tests.bundles.support import archive_of, bundle, folder_of
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


@pytest.mark.parametrize("platform", ["apple"])
def test_a_platform_without_a_harness_says_so(copy: Path, platform: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bundle(copy, platform, "--harness", "--precisions", "fp32") == 2
    assert f"there is no harness for {platform}" in capsys.readouterr().err
