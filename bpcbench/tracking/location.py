"""Where MLflow lies: a tracking server that the user names, or an SQLite file in the store."""

from __future__ import annotations

import os
import re
from pathlib import Path

from bpcbench.errors import StoreError

DATABASE = "mlflow.db"
ARTIFACTS = "mlflow-artifacts"
_PLAIN = re.compile(r"[A-Za-z0-9_./+~ -]*")
_CREDENTIALS = re.compile(r"(?<=//)[^/\s@]+(?=@)")
_DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
}


def named_server() -> str | None:
    """Return the MLFLOW_TRACKING_URI of the environment, None if it is not set."""
    return os.environ.get("MLFLOW_TRACKING_URI") or None


def tracking_uri(store: Path) -> str:
    """Return where runs are logged: MLFLOW_TRACKING_URI, else an SQLite file in the store.

    Raise StoreError if something other than a file lies in the database's place.
    """
    if uri := named_server():
        return uri
    path = database(store)
    if path.exists() and not path.is_file():
        raise StoreError(f"{path} is not a file: MLflow's database belongs there; move it away, or pass --no-mlflow")
    if _PLAIN.fullmatch(str(path)):
        return f"sqlite:///{path}"
    # How a path is escaped depends on SQLAlchemy's version. With the driver named, MLflow does not create the folder of
    # the escaped path.
    from sqlalchemy.engine import URL

    return URL.create("sqlite+pysqlite", database=str(path)).render_as_string(hide_password=False)


def database(store: Path) -> Path:
    """Return the file of the store's own MLflow database."""
    return store.absolute() / DATABASE


def redacted(text: str) -> str:
    """Return a text with the user and password of every address in it replaced by `***`."""
    return _CREDENTIALS.sub("***", text)


def without_credentials(uri: str) -> str:
    """Return an address without user and password."""
    return re.sub(r"(?<=//)[^/\s@]+@", "", uri)


def quiet_environment() -> None:
    """Switch telemetry off, and keep MLflow from waiting minutes for a server that does not answer."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
