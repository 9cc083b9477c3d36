"""The hash of records: of their content, in order or in any (S81)."""

from __future__ import annotations

from firsthand.data.content_hash import set_hash

RECORDS = [{"request_id": str(i), "text": "a", "max_length": i} for i in range(5)]


def test_s_81_the_order_of_fields_does_not_count_and_that_of_records_may() -> None:
    turned = [dict(reversed(record.items())) for record in RECORDS]
    assert set_hash(turned) == set_hash(RECORDS)
    backwards = RECORDS[::-1]
    assert set_hash(backwards) != set_hash(RECORDS)
    assert set_hash(backwards, any_order=True) == set_hash(RECORDS, any_order=True)


def test_s_81_one_record_less_more_or_changed_is_another_hash() -> None:
    for any_order in (False, True):
        whole = set_hash(RECORDS, any_order=any_order)[0]
        changed = [*RECORDS[:-1], RECORDS[-1] | {"text": "b"}]
        others = (RECORDS[:-1], [*RECORDS, RECORDS[0]], [*RECORDS, RECORDS[0], RECORDS[0]], changed)
        found = {set_hash(one, any_order=any_order)[0] for one in others}
        assert whole not in found
        assert len(found) == len(others)
