"""Where MLflow lies, whatever the store is called, and what is printed of it."""

from __future__ import annotations

import sqlite3

import pytest

from bpcbench.cli import main
from bpcbench.errors import StoreError
from bpcbench.store.store import Store
from bpcbench.tracking.location import quiet_environment, redacted, tracking_uri, without_credentials


@pytest.mark.parametrize("name", ["plain", "a b", "50%", "a%20b", "a#b", "a?b=c", "söre"])
def test_a_store_may_have_any_path(tmp_path, monkeypatch, name):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    from sqlalchemy import create_engine, text

    store = tmp_path / name
    store.mkdir()
    engine = create_engine(tracking_uri(store))
    with engine.begin() as connection:
        connection.execute(text("create table here (x int)"))
    engine.dispose()
    assert [path.name for path in store.iterdir()] == ["mlflow.db"]
    assert [path.name for path in tmp_path.iterdir()] == [name]
    with sqlite3.connect(store / "mlflow.db") as connection:
        assert connection.execute("select name from sqlite_master").fetchall() == [("here",)]


def test_a_folder_in_the_place_of_the_database_is_refused(tmp_path, monkeypatch, write_suite, capsys):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "store" / "mlflow.db").mkdir(parents=True)
    with pytest.raises(StoreError, match="is not a file"):
        tracking_uri(tmp_path / "store")
    suite = write_suite("protocol: 1\ndatasets: [digits]\nipc: [1]\nmethods: [random]\n")
    assert main(["run", suite, "--out", str(tmp_path / "store")]) == StoreError.exit_code
    assert "mlflow.db is not a file" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["mlflow.db"]


def test_credentials_are_not_shown():
    uri = "https://someone:pass%40word@host:5000/path"
    assert redacted(f"MLflow at {uri} failed") == "MLflow at https://***@host:5000/path failed"
    assert without_credentials(uri) == "https://host:5000/path"
    for harmless in ("sqlite:////tmp/a@b/mlflow.db", "http://host/a@b"):
        assert redacted(harmless) == without_credentials(harmless) == harmless


@pytest.mark.parametrize(
    ("uri", "shown", "address"),
    [
        ("http://bob:sec/ret@host", "http://***@host", "http://host"),
        ("http://bob:sec@ret@host/x", "http://***@host/x", "http://host/x"),
        ("http://bob:se cret@host", "http://***@host", "http://host"),
        ("http://:sec/ret@host", "http://***@host", "http://host"),
        ("http://token@host:80", "http://***@host:80", "http://host:80"),
        ("postgresql+psycopg2://bob:sec/r?t#@host/db", "postgresql+psycopg2://***@host/db", None),
        ("mysql://host/db?user=bob&password=secret&x=1", "mysql://host/db?user=bob&password=***&x=1", None),
        ("https://host/path?api_key=sec%20ret#top", "https://host/path?api_key=***#top", None),
        ("http://host/a@b", "http://host/a@b", "http://host/a@b"),
        ("sqlite:////tmp/a@b/mlflow.db", "sqlite:////tmp/a@b/mlflow.db", "sqlite:////tmp/a@b/mlflow.db"),
    ],
)
def test_whatever_a_password_holds_it_is_not_shown(uri, shown, address, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert redacted(f"MLflow at {uri}: no {uri!r}") == f"MLflow at {shown}: no {shown!r}"
    if address:
        assert without_credentials(uri) == address
    assert main(["doctor", "--out", str(Store.open(tmp_path / "store").root)]) in (0, 1)
    assert f"MLflow: {shown}\n" in "".join(capsys.readouterr())


def test_a_password_alone_is_not_shown_either(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://bob:pass%40word@host")
    assert redacted("denied: pass%40word, pass@word, bob") == "denied: ***, ***, bob"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://bob:in@host")
    assert redacted("nothing in http://bob:in@host") == "nothing in http://***@host"


def test_telemetry_is_off_before_mlflow_is_imported(monkeypatch):
    import os

    for name in ("MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK"):
        monkeypatch.delenv(name, raising=False)
    quiet_environment()
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"


def test_mlflow_prints_no_addresses_of_runs(monkeypatch):
    monkeypatch.delenv("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", raising=False)
    quiet_environment()
    from mlflow.environment_variables import MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT

    assert MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT.get() is True
