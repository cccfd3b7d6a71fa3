"""A recorded run opens in the MLflow UI, in a real browser."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from raptor.hooks.config import TrackingConfig
from raptor.hooks.mlflow_run import MlflowRun

pytestmark = [pytest.mark.slow, pytest.mark.browser]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    root = tmp_path_factory.mktemp("ui")
    run = MlflowRun(
        TrackingConfig(), root, "the whole job", int(time.time() * 1000), {"kedro.command": "kedro run"}
    )
    run.log_parameters({"training": {"cycles": 7}})
    run.log_metrics({"epsilon": 2.875}, "privacy")
    run.close("FINISHED")
    return root, run.run_id


@pytest.fixture(scope="module")
def address(run: tuple[Path, str]) -> Iterator[str]:
    """The UI, started as `make ui` starts it."""
    root, _ = run
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = ["-m", "mlflow", "ui", "--workers", "1", "--host", "127.0.0.1", "--port", str(port)]
    with (root / "ui.log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, *arguments, "--backend-store-uri", f"sqlite:///{root / 'mlflow.db'}"],
            cwd=root,
            env={
                **os.environ,
                "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
                "MLFLOW_DISABLE_TELEMETRY": "true",
            },
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        place = f"http://127.0.0.1:{port}"
        for _ in range(240):
            assert server.poll() is None, (root / "ui.log").read_text()
            try:
                urllib.request.urlopen(f"{place}/health", timeout=1).close()
                break
            except (urllib.error.URLError, TimeoutError, ConnectionError):
                time.sleep(0.5)
        yield place
    finally:
        server.terminate()
        server.wait(timeout=30)


def test_run_page_shows_parameters_metrics_and_state(
    address: str, run: tuple[Path, str], tmp_path: Path
) -> None:
    chromium = next((found for name in ("chromium", "google-chrome") if (found := shutil.which(name))), None)
    if chromium is None:
        pytest.skip("no chromium or google-chrome on this machine")
    _, run_id = run
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    page = ""
    for attempt in range(3):
        done = subprocess.run(
            [
                chromium,
                *options,
                f"--user-data-dir={tmp_path / str(attempt)}",
                "--virtual-time-budget=30000",
                "--timeout=60000",
                "--dump-dom",
                f"{address}/#/experiments/1/runs/{run_id}",
            ],
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        page = done.stdout
        if "privacy/epsilon" in page:
            break
    for expected in ("the whole job", "privacy/epsilon", "2.875", "training.cycles", "Finished"):
        assert expected in page, expected
