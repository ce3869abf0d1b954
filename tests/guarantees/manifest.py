# ruff: noqa: E501 - sentences
"""Guarantees, and the tests that fail if one is broken. `docs/guarantees.md` is generated from this module."""

from typing import NamedTuple

__all__ = ["GUARANTEES", "Guarantee", "page"]


class Guarantee(NamedTuple):
    """A guarantee with the tests that prove it."""

    id: str
    title: str
    text: str
    tests: tuple[str, ...]


GUARANTEES = (
    Guarantee(
        "G1-durable",
        "Durable",
        "If start, step, answer, signal or cancel has returned success, it survives kill -9 and power loss (with SQLite "
        "`synchronous=FULL` or PostgreSQL `synchronous_commit=on`, and the default checkpoint strategy).",
        (
            "tests/crash/test_kills.py::test_no_acknowledged_event_is_lost_after_a_kill",
            "tests/crash/test_runs.py::test_a_run_killed_at_any_commit_is_continued_immediately",
            "tests/crash/test_postgres_faults.py::test_a_crashing_server_loses_or_doubles_no_write",
            "tests/crash/test_prunes.py::test_pruning_loses_no_live_run_while_processes_are_killed",
            "tests/crash/test_audit.py::test_an_acknowledged_audit_event_survives_a_kill",
            "tests/simulation/test_simulation.py::test_invariants_hold_under_all_faults",
        ),
    ),
    Guarantee(
        "G2-no-step-twice",
        "No step twice",
        "A completed step returns its recorded result on resume; its function is not called again. With a weaker "
        "checkpoint strategy a read may run again, but never an effect.",
        (
            "tests/behaviour/steps/test_steps.py::test_a_completed_step_is_not_called_again",
            "tests/behaviour/runs/test_turns.py::test_a_weaker_checkpoint_strategy_repeats_reads_but_no_effect",
            "tests/crash/test_runs.py::test_a_run_killed_at_random_moments_is_continued",
        ),
    ),
    Guarantee(
        "G3-no-blind-repeat",
        "No blind repeat",
        "An effect that started and has no result is unknown. It is repeated only if its author declared that safe. "
        "Otherwise its `verify` decides, or else a person. Exactly-once cannot be promised for a tool without an "
        "idempotency key.",
        (
            "tests/behaviour/steps/test_steps.py::test_an_interrupted_once_effect_without_verify_goes_to_a_person",
            "tests/behaviour/steps/test_steps.py::test_a_once_effect_that_raises_is_verified",
            "tests/behaviour/steps/test_steps.py::test_an_idempotent_effect_without_a_response_has_an_unknown_outcome",
            "tests/crash/test_runs.py::test_a_run_killed_in_a_tool_and_during_its_recovery_is_continued",
            "tests/crash/test_forks.py::test_a_fork_killed_at_any_commit_is_continued",
            "tests/simulation/test_simulation.py::test_an_unsafe_repeat_is_found",
        ),
    ),
    Guarantee(
        "G4-one-key",
        "One key per action",
        "Every effect has the key `{run}:step_{number}:{tool}:{hash of args}`, the same on every retry and resume.",
        (
            "tests/unit/engine/definitions/test_tools.py::test_idempotency_keys_never_change",
            "tests/behaviour/steps/test_steps.py::test_a_safe_step_is_repeated_after_a_crash_without_counting_an_attempt",
            "tests/simulation/test_simulation.py::test_invariants_hold_under_all_faults",
        ),
    ),
    Guarantee(
        "G5-one-writer",
        "One writer",
        "A worker appends to a run under its fence; a worker that has lost the run cannot append any event. Commands "
        "from other processes are a closed list, and the store puts them in order.",
        (
            "tests/crash/test_runs.py::test_a_suspended_worker_cannot_write_after_another_took_over",
            "tests/crash/test_prunes.py::test_a_suspended_worker_does_not_write_to_a_new_run_with_the_same_id",
            "tests/conformance/test_postgres.py::test_postgres_store_conforms",
            "tests/conformance/test_sqlite.py::test_sqlite_store_conforms",
        ),
    ),
    Guarantee(
        "G6-no-gap",
        "No gap",
        "A run's log is numbered 1..n and hash-chained, and each append is atomic. A change inside the log is detected. "
        "Truncation, or a rewrite of the whole log, is detected by comparing it with exported heads.",
        (
            "tests/laws/test_law_chain.py::test_a_change_of_any_field_of_any_event_is_found",
            "tests/behaviour/storage/test_bundles.py::test_a_changed_bundle_is_refused",
            "tests/behaviour/tampering/test_edited_events.py::test_verify_finds_every_edit_of_every_event",
            "tests/behaviour/tampering/test_edited_events.py::test_saved_heads_detect_a_truncated_log",
            "tests/behaviour/tampering/test_edited_events.py::test_saved_heads_detect_a_rewritten_log",
            "tests/behaviour/tampering/test_changed_values.py::test_verify_finds_random_changes",
            "tests/behaviour/storage/test_audit.py::test_a_changed_event_is_found",
            "tests/behaviour/tampering/test_no_false_alarms.py::test_verify_accepts_random_walks",
            "tests/behaviour/tampering/test_no_false_alarms.py::test_verify_ignores_a_run_that_is_deleted_meanwhile",
        ),
    ),
    Guarantee(
        "G7-one-answer",
        "One answer",
        "Each request is decided once, for the exact arguments that the person saw. The decision and the wake-up of the "
        "run are one transaction.",
        (
            "tests/behaviour/runs/test_waits.py::test_an_answer_that_does_not_fit_its_request_is_refused",
            "tests/behaviour/runs/test_waits.py::test_an_unanswered_request_takes_its_default_escalates_or_raises",
            "tests/behaviour/requests/test_requests.py::test_a_second_late_or_unknown_answer_is_refused_with_the_reason",
            "tests/behaviour/requests/test_event_orders.py::test_requests_are_decided_once_in_every_order_of_events",
            "tests/behaviour/requests/test_approved_arguments.py::test_changed_arguments_need_another_approval",
            "tests/crash/test_requests.py::test_one_of_two_concurrent_answers_wins",
            "tests/crash/test_requests.py::test_a_handoff_killed_at_any_commit_is_continued",
            "tests/crash/test_forks.py::test_a_fork_killed_at_any_commit_is_continued",
            "tests/typing/jobs/job7_test.py::test_refund_is_retried_and_paid_once",
            "tests/simulation/test_simulation.py::test_invariants_hold_under_all_faults",
        ),
    ),
    Guarantee(
        "G8-fold",
        "State = fold(log)",
        "The state is the same on every store, from any snapshot, in any later version. Agent code sees the same results "
        "live and on replay.",
        (
            "tests/laws/test_law_fold.py::test_every_cut_of_a_log_gives_the_same_state",
            "tests/behaviour/replay/test_code_changes.py::test_a_race_has_the_same_winner_on_replay",
            "tests/behaviour/replay/test_return_order.py::test_racing_calls_return_in_the_same_order_on_replay",
            "tests/behaviour/replay/test_code_changes.py::test_an_unsafe_edit_is_refused_before_any_effect",
            "tests/behaviour/runs/test_turns.py::test_replayed_state_contains_only_what_the_code_has_reached",
            "tests/unit/journal/test_journal.py::test_a_learners_data_is_kept_in_the_snapshot",
        ),
    ),
    Guarantee(
        "G9-linear",
        "Linear growth",
        "Bytes per step are constant. Messages and large payloads are stored once; events refer to them.",
        (
            "tests/unit/stores/test_blobs.py::test_shared_content_is_stored_once_in_the_file",
            "tests/behaviour/runs/test_turns.py::test_a_resumed_run_starts_at_its_current_turn",
        ),
    ),
    Guarantee(
        "G10-live",
        "Liveness",
        "When faults stop, every runnable run continues within two leases. On one machine, the runs of a killed process "
        "continue as soon as it is restarted.",
        (
            "tests/crash/test_kills.py::test_a_run_of_a_killed_worker_is_claimed_immediately",
            "tests/crash/test_runs.py::test_a_run_killed_at_any_commit_is_continued_immediately",
            "tests/simulation/test_simulation.py::test_invariants_hold_under_all_faults",
        ),
    ),
    Guarantee(
        "G11-inert",
        "Inert data",
        "All formats are JSON. There is no pickle, no revival of objects, and no type marker inside user data.",
        ("tests/laws/test_law_values.py::test_any_value_is_decoded_unchanged_or_refused",),
    ),
    Guarantee(
        "G12-honest",
        "Honest",
        "An error is never reported as success. A refused write changes nothing. Every error has a stable code, its "
        "fields, and a hint.",
        (
            "tests/unit/test_errors.py::test_the_templates_format_with_the_fields",
            "tests/behaviour/steps/test_steps.py::test_an_effect_whose_output_cannot_be_stored_is_not_repeated",
            "tests/unit/stores/sqlite/test_files.py::test_no_write_is_acknowledged_after_the_file_was_replaced",
            "tests/crash/test_disk.py::test_nothing_is_acknowledged_between_a_failed_sync_and_the_next_full_sync",
        ),
    ),
)


def page() -> str:
    """Return the page `docs/guarantees.md`."""
    lines = [
        "# Guarantees",
        "",
        "Each guarantee has an id and the tests that fail if it is broken. `make fix` generates this page from",
        "`tests/guarantees/manifest.py`; a test fails if a guarantee has no test.",
        "",
    ]
    for guarantee in GUARANTEES:
        lines += [f"## {guarantee.id}: {guarantee.title}", "", guarantee.text, "", "Tests:", ""]
        lines += [f"- `{test}`" for test in guarantee.tests]
        lines.append("")
    return "\n".join(lines)
