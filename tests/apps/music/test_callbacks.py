"""Readings of callbacks, and how they move a track."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boathook_music.callbacks import Callback, Clip, Stage, decode_clips, encode_clips, read_callbacks
from boathook_music.stages import AddData, Forward, Late, Status, step

CLIP = {
    "id": "e231",
    "audio_url": "https://cdn.example.com/a.mp3",
    "image_url": "https://cdn.example.com/a.jpeg",
    "title": "Iron Man",
    "duration": 198.44,
}


def kie(stage="complete", code=200, data=(CLIP,), **more):
    return {"code": code, "msg": "said", "data": {"callbackType": stage, "task_id": "t1", "data": list(data), **more}}


def only(document, **how) -> Callback:
    (found,) = read_callbacks(document, **how)
    return found


def test_a_callback_of_kie_names_task_stage_and_clips():
    clip = Clip(
        id="e231",
        title="Iron Man",
        duration_s=Decimal("198.44"),
        audio_url="https://cdn.example.com/a.mp3",
        cover_url="https://cdn.example.com/a.jpeg",
    )
    assert only(kie()) == Callback(task_id="t1", stage=Stage.COMPLETE, code=200, message="said", clips=(clip,))


@pytest.mark.parametrize("word", ["text", "first", "complete", "error"])
def test_each_stage_is_known(word):
    assert only(kie(word)).stage == word


@pytest.mark.parametrize("code", [400, 451, 500, 531, "501"])
def test_a_code_of_400_or_more_is_an_error_at_any_stage(code):
    assert only(kie("complete", code)).stage is Stage.ERROR


@pytest.mark.parametrize(
    ("document", "task", "stage"),
    [
        (
            {"code": 200, "data": {"taskId": "t2", "status": "SUCCESS", "response": {"sunoData": [CLIP]}}},
            "t2",
            "complete",
        ),
        ({"code": 200, "data": {"taskId": "t2", "status": "CREATE_TASK_FAILED"}}, "t2", "error"),
        ({"taskId": "t2", "code": 200, "data": {"callbackType": "first", "data": None}}, "t2", "first"),
        ({"code": 200, "data": {"task_id": 17, "state": "queued"}}, "17", "unknown"),
        ({"code": 200, "data": {"task_id": "t", "callbackType": "error"}}, "t", "error"),
    ],
)
def test_other_shapes_are_read_too(document, task, stage):
    found = only(document)
    assert (found.task_id, found.stage) == (task, stage)


def test_lists_of_clips_are_a_task_for_each():
    clips = [
        {"clip_id": "c1", "state": "succeeded", **{k: CLIP[k] for k in ("audio_url",)}},
        {"clip_id": "c2", "state": "failed"},
    ]
    found = read_callbacks({"code": 200, "data": clips}, kind="song.completed")
    assert [(one.task_id, one.stage) for one in found] == [("c1", Stage.COMPLETE), ("c2", Stage.ERROR)]
    assert found[0].clips[0].audio_url == CLIP["audio_url"]


def test_the_stage_is_read_from_the_header_if_not_in_the_body():
    assert only({"code": 200, "data": [{"clip_id": "c1"}]}, kind="song.completed").stage is Stage.COMPLETE


@pytest.mark.parametrize("url", ["file:///etc/passwd", "gopher://x/", "//x/y", "https://x/\n", "h" * 3_000, 17, None])
def test_addresses_of_other_kinds_are_left_out(url):
    assert only(kie(data=[{**CLIP, "audio_url": url}])).clips[0].audio_url is None


def test_clips_without_an_id_are_numbered_and_duplicates_merged():
    found = only(kie(data=[{}, {}, {"id": "a"}, {"id": "a", "title": "again"}])).clips
    assert [clip.id for clip in found] == ["clip-1", "clip-2", "a"]


def test_no_more_clips_than_allowed():
    assert len(only(kie(data=[{"id": str(n)} for n in range(50)]), max_clips=20).clips) == 20
    assert len(read_callbacks({"data": [{"id": str(n)} for n in range(50)]}, max_clips=20)) == 20


@pytest.mark.parametrize(
    "document", [None, 17, "x", [], {}, {"data": None}, {"data": {"task_id": ""}}, {"data": {"task_id": True}}]
)
def test_a_callback_without_a_task_is_ignored(document):
    assert read_callbacks(document) == ()


def test_characters_postgresql_cannot_store_are_replaced():
    found = only(kie(data=[{**CLIP, "title": "a\x00b\ud800"}]))
    assert found.clips[0].title == "a\N{REPLACEMENT CHARACTER}b?"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["data", "task_id", "taskId", "callbackType", "code", "id", "audio_url", "duration", "msg", "state"]
            ),
            inner,
            max_size=5,
        )
    ),
)


@given(JSON)
def test_any_document_is_read_without_raising_and_storable(document):
    for one in read_callbacks(document):
        assert 0 < len(one.task_id) <= 200
        assert decode_clips(encode_clips(one.clips)) == one.clips


# Stages


def test_stages_move_forward_only():
    rank = {Status.PENDING: 0, Status.TEXT: 1, Status.FIRST: 2, Status.COMPLETE: 3}
    for status, at in rank.items():
        for stage in (Stage.TEXT, Stage.FIRST, Stage.COMPLETE):
            match step(status, stage):
                case Forward(status=to):
                    assert rank[to] > at
                case Late():
                    assert rank[Status(stage)] <= at
                case AddData():
                    assert (status, stage) == (Status.COMPLETE, Stage.COMPLETE)


def test_an_error_is_final_unless_songs_arrive_in_spite_of_it():
    for status in (Status.PENDING, Status.TEXT, Status.FIRST):
        assert step(status, Stage.ERROR) == Forward(Status.FAILED)
    for stage in (Stage.TEXT, Stage.FIRST, Stage.ERROR):
        assert isinstance(step(Status.FAILED, stage), Late)
    assert step(Status.FAILED, Stage.COMPLETE) == Forward(Status.COMPLETE)
    assert isinstance(step(Status.COMPLETE, Stage.ERROR), Late)


def test_nothing_moves_a_deleted_track_and_nothing_unknown_moves_any():
    assert all(isinstance(step(Status.DELETED, stage), Late) for stage in Stage)
    assert all(isinstance(step(status, Stage.UNKNOWN), Late) for status in Status)


@pytest.mark.parametrize("duration", ["sNaN", "NaN", "Infinity", "-sNaN7"])
def test_a_duration_that_is_no_number_is_left_out(duration: str):
    assert only(kie(data=[CLIP | {"duration": duration}])).clips[0].duration_s is None
