"""Where MLflow lies: a tracking server that the user names, or an SQLite file in the store."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote

from bpcbench.errors import StoreError

DATABASE = "mlflow.db"
ARTIFACTS = "mlflow-artifacts"
_PLAIN = re.compile(r"[A-Za-z0-9_./+~ -]*")
_USERINFO = re.compile(r"(?<=://)[^/?#\s]+(?=@)")
# A password with a slash or a blank is no part of a valid address, but is one that somebody meant.
_NAMED_USERINFO = re.compile(r"[\w+.-]+://([^/?#@]*:.*|[^/?#]+)@", re.DOTALL)
_QUERY = re.compile(r"([?&;][\w.-]*(?:pass|pwd|token|secret|key|auth|cred|sig)[\w.-]*=)[^&;#\s'\"]+", re.IGNORECASE)
_HIDDEN = "***"
_SHORTEST_SECRET = 4
"""Shorter passwords are hidden in addresses only: as words of their own they stand in any text."""
_DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    # Standard output is for the table, and the address may have a password in it.
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
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
    """Return a text with the credentials of every address in it, and those of the named server, replaced by `***`."""
    userinfo = _named_userinfo()
    if userinfo:
        text = text.replace(f"{userinfo}@", f"{_HIDDEN}@")
    text = _QUERY.sub(rf"\1{_HIDDEN}", _USERINFO.sub(_HIDDEN, text))
    password = userinfo.partition(":")[2]
    for secret in (userinfo, password, unquote(password)):
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, _HIDDEN)
    return text


def without_credentials(uri: str) -> str:
    """Return an address without user and password."""
    if userinfo := _named_userinfo():
        uri = uri.replace(f"{userinfo}@", "")
    return _QUERY.sub(rf"\1{_HIDDEN}", re.sub(rf"{_USERINFO.pattern}@", "", uri))


def _named_userinfo() -> str:
    """Return user and password of the server that the user names, as they are written; empty if there are none."""
    found = _NAMED_USERINFO.match(named_server() or "")
    return found[1] if found else ""


def quiet_environment() -> None:
    """Switch telemetry and messages off, and keep MLflow from waiting minutes for a server that does not answer."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
