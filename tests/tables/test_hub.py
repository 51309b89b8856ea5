"""Studies on the Hub: uploaded by the real client to a server on this machine, and loaded from the client's cache."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub
import pandas as pd
import pytest
from huggingface_hub import DatasetCard, HfApi
from huggingface_hub.errors import LocalEntryNotFoundError

import headroles as hr
from headroles.tables import frame, hub

SIGNATURE = "model:toy/model|weights:abc|corpus:c|headroles:0"
REPO = "someone/heads-of-toy"


@pytest.fixture
def study(tmp_path: Path) -> hr.Study:
    """Two tables, a figure, a report, and files that stay at home."""
    study = hr.Study(tmp_path / "study")
    index = frame.index({("enc-self", 0): 3, ("cross", 1): 2})
    columns = {"confidence": [0.5, 0.25, 1.0, 0.125, 0.75], "confidence.low": [0.0] * 5}
    study.keep("heads", "weights:abc", lambda: frame.table(columns, index, SIGNATURE))
    study.keep("roles", "weights:abc", lambda: frame.table({"sink": [1.0] * 5}, index, SIGNATURE))
    for name in ("heatmap.png", "report.html", "secret.txt"):
        (study.folder / name).write_text(name)
    (study.folder / ".sweeps").mkdir()
    (study.folder / ".sweeps" / "part.parquet").write_text("unfinished")
    return study


class Hub(BaseHTTPRequestHandler):
    """The part of the Hub's interface that an upload of small files needs."""

    files: dict[str, bytes]
    asked: list[str]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.asked.append(self.path)
        if self.path.endswith("/preupload/main"):
            names = [file["path"] for file in json.loads(body)["files"]]
            answer = {"files": [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]}
        elif self.path.endswith("/commit/main"):
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            answer = {"commitUrl": f"{self._here()}/datasets/{REPO}/commit/1", "commitOid": "1" * 40, "success": True}
        else:
            answer = {"url": f"{self._here()}/datasets/{REPO}", "errors": [], "warnings": []}
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _here(self) -> str:
        return f"http://{self.headers['Host']}"

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, type[Hub]]]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    handler = type("Handler", (Hub,), {"files": {}, "asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as here:
        thread = threading.Thread(target=here.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{here.server_port}", handler
        here.shutdown()
        thread.join()
    huggingface_hub.close_session()


@pytest.fixture
def cached(study: hr.Study, tmp_path: Path) -> Path:
    """The client's cache, laid out as after a download."""
    place = tmp_path / "cache" / f"datasets--{REPO.replace('/', '--')}"
    hub.prepare(study.folder, place / "snapshots" / ("1" * 40), repo=REPO)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("1" * 40)
    return tmp_path / "cache"


def test_the_client_uploads_tables_figures_report_and_card(study, server):
    address, sent = server
    where = study.push_to_hub(REPO, api=HfApi(endpoint=address, token="hf_none"))
    assert where == f"{address}/datasets/{REPO}/commit/1"
    assert set(sent.files) == {"heads.parquet", "roles.parquet", "heatmap.png", "report.html", "README.md"}
    for name, content in sent.files.items():
        if name != "README.md":
            assert content == (study.folder / name).read_bytes()
    assert sent.asked[0] == "/api/repos/create"
    assert sent.files["README.md"].decode() == hub.card(study.folder, REPO)
    assert not (study.folder / "README.md").exists()


def test_a_study_comes_back_from_the_cache_of_the_client(study, cached):
    again = hr.Study.from_hub(REPO, local_files_only=True, cache=cached)
    assert again.names() == study.names()
    for name in study.names():
        table = again.load(name)
        pd.testing.assert_frame_equal(table, study.load(name))
        assert table.attrs == study.load(name).attrs
    assert hr.report(again, study.folder / "again.html").is_file()


def test_what_was_never_downloaded_is_an_error(tmp_path):
    with pytest.raises(LocalEntryNotFoundError):
        hr.Study.from_hub("someone/else", local_files_only=True, cache=tmp_path)


def test_a_data_set_of_another_origin_is_no_study(cached):
    (folder,) = cached.glob("*/snapshots/*")
    for path in folder.glob("*.parquet"):
        pd.DataFrame({"a": [1]}).to_parquet(path)
    with pytest.raises(FileNotFoundError, match=f"^no study in the data set {REPO}: got no table of headroles"):
        hr.Study.from_hub(REPO, local_files_only=True, cache=cached)


def test_the_card_names_tables_columns_and_provenance(study, tmp_path):
    place = hub.prepare(study.folder, tmp_path / "prepared", repo=REPO)
    card = DatasetCard.load(place / "README.md")
    assert card.data.configs == [{"config_name": name, "data_files": f"{name}.parquet"} for name in ("heads", "roles")]
    assert "# Attention heads of toy/model" in card.text
    assert "- `heads`: 5 rows; confidence\n" in card.text
    assert f"- heads, roles: `{SIGNATURE}`" in card.text
    assert f'hr.Study.from_hub("{REPO}")' in card.text


def test_datasets_reads_the_tables_without_headroles(study, tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    place = hub.prepare(study.folder, tmp_path / "prepared")
    rows = datasets.load_dataset(str(place), "heads", cache_dir=str(tmp_path / "datasets"))["train"]
    assert rows["confidence"][:] == study.load("heads")["confidence"].tolist()
    assert rows["kind"][:] == ["enc-self"] * 3 + ["cross"] * 2


def test_a_card_of_ones_own_stays_and_an_old_one_is_renewed(study, tmp_path):
    (study.folder / "README.md").write_text("mine")
    assert (hub.prepare(study.folder, tmp_path / "a") / "README.md").read_text() == "mine"
    (study.folder / "README.md").write_text(hub.card(study.folder, "someone/old"))
    shutil.rmtree(tmp_path / "a")
    assert (hub.prepare(study.folder, tmp_path / "a", repo=REPO) / "README.md").read_text() == hub.card(
        study.folder, REPO
    )


def test_a_study_without_tables_is_not_uploaded(tmp_path):
    with pytest.raises(FileNotFoundError, match="^no tables in .*; make them with headroles score$"):
        hr.Study(tmp_path / "none").push_to_hub(REPO)


def test_links_are_not_followed_out_of_a_study(study, tmp_path, caplog):
    """What they point to was uploaded."""
    (tmp_path / "key.txt").write_text("secret")
    for name in ("link.png", "README.md", "other.parquet"):
        (study.folder / name).symlink_to(tmp_path / "key.txt")
    place = hub.prepare(study.folder, tmp_path / "prepared")
    assert {path.name for path in place.iterdir()} == {
        *("heads.parquet", "roles.parquet", "heatmap.png", "report.html", "README.md")
    }
    assert not any(b"secret" in path.read_bytes() for path in place.iterdir())
    assert f"{study.folder / 'link.png'} is not uploaded: it is a link, or no file" in caplog.messages


def test_names_in_a_card_are_no_html(tmp_path):
    study = hr.Study(tmp_path / "study")
    column, signature = "a<img src=x>", "model:<script>alert(1)</script>|weights:`<b>"
    study.keep("heads", "k", lambda: frame.table({column: [1.0]}, frame.index({("cross", 0): 1}), signature))
    text = hub.card(study.folder, REPO)
    assert "# Attention heads of &lt;script&gt;alert(1)&lt;/script&gt;\n" in text
    assert "- `heads`: 1 rows; a&lt;img src=x&gt;\n" in text
    assert f"- heads: `{signature.replace('`', chr(39))}`" in text  # within backticks, which it does not end


def test_whether_the_hub_can_be_reached_is_known_in_seconds(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections and answers nothing
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
        monkeypatch.setattr(hub, "WAIT", 0.5)
        assert hub.unreachable() in (f"no answer from {endpoint} in 0.5 s", f"ReadTimeout at {endpoint}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert hub.unreachable() == "HF_HUB_OFFLINE is set"


def test_an_answer_of_any_kind_is_a_hub(monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)  # it answers 501
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    assert hub.unreachable() == ""
    server.shutdown()
    server.server_close()
