import os
import threading
from pathlib import Path

import pytest

from retrieval_index.publish import MANIFEST_FILE, publishing


def fill(folder, content="content"):
    (folder / "file").write_text(content)
    (folder / MANIFEST_FILE).write_text('{"format_version": 5, "files": {"file": {}}}')


def test_two_builds_of_one_folder_are_kept_apart(tmp_path):
    folder, errors = tmp_path / "index", []

    def other():
        try:
            with publishing(folder, {"source": 2}):
                pass
        except FileExistsError as error:
            errors.append(str(error))

    with publishing(folder, {"source": 1}) as staging:
        fill(staging)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert (staging / "file").exists()
    assert "another process is building" in errors[0]
    assert (folder / "file").read_text() == "content"


def test_behind_a_link_is_what_is_replaced(tmp_path):
    with publishing(tmp_path / "v1") as staging:
        fill(staging, "old")
    (tmp_path / "current").symlink_to(tmp_path / "v1")
    with publishing(tmp_path / "current") as staging:
        fill(staging, "new")
    assert (tmp_path / "current").is_symlink() and (tmp_path / "v1" / "file").read_text() == "new"
    assert sorted(os.listdir(tmp_path)) == ["current", "v1"]


@pytest.mark.parametrize("manifest", ('{"name": "an app"}', "[]", "no JSON"))
def test_a_folder_with_a_manifest_of_its_own_is_left_alone(tmp_path, manifest):
    folder = tmp_path / "app"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "app.js").write_text("months of work")
    (folder / MANIFEST_FILE).write_text(manifest)
    with pytest.raises(FileExistsError, match="exists and is not an index"), publishing(folder) as staging:
        fill(staging)
    assert (folder / "src" / "app.js").read_text() == "months of work"


def test_a_mount_point_is_refused_before_anything_is_built(tmp_path, monkeypatch):
    volume = tmp_path / "volume"
    volume.mkdir()
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == volume)
    with pytest.raises(FileExistsError, match="is a mount point"), publishing(volume):
        pytest.fail("it should not begin")
    with publishing(volume / "index") as staging:
        (staging / "x").touch()
    assert (volume / "index" / "x").exists()


def test_what_lies_beside_an_index_is_not_lost(tmp_path):
    folder = tmp_path / "index"
    with publishing(folder) as staging:
        fill(staging)
    (folder / "notes").mkdir()
    (folder / "notes" / "today.md").write_text("notes")
    (folder / ".hidden").write_text("")
    with pytest.raises(FileExistsError, match=r"other files, such as 'notes/today\.md'"), publishing(folder) as staging:
        fill(staging)
    (folder / "notes" / "today.md").unlink()
    with publishing(folder) as staging:
        fill(staging, "new")
    assert (folder / "file").read_text() == "new"
    late = tmp_path / "late"  # a build takes hours
    with pytest.raises(FileExistsError, match="is not an index"), publishing(late, {"a": 1}) as staging:
        (staging / "x").write_text("new")
        late.mkdir()
        (late / "notes.txt").write_text("precious")
    assert (late / "notes.txt").read_text() == "precious"
    assert (tmp_path / ".late.building" / "x").read_text() == "new"  # and the same build goes on from there
