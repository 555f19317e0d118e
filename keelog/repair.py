"""A repair from plan to check: the log's part, then the derived files', under the store's lock."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from keelog.progress import Advance
from node.runtime.locks import StoreLock
from node.runtime.settings import Settings
from node.store.condition import check_is_store
from node.store.repair.plan import Plan, derived_steps, plan_repair
from node.store.repair.steps import REWRITE_CHECKPOINT, FileStep
from node.store.verify.verify import VerifyReport, verify
from node.writer.repair import move_strangers, repair_log, rewrite_checkpoint
from workers.rebuild import rebuild_damaged


class Repaired(NamedTuple):
    """The steps that were taken, and what `verify` says of the store now."""

    plan: Plan
    report: VerifyReport


def repair(root: Path, settings: Settings, progress: Advance | None = None) -> Repaired:
    """Plans, and does it; `progress` gets bytes of the log.

    Raises StoreLocked, NotAStore, StorePermission, StoreDamaged for what cannot be mended, OSError.
    Killed in the middle it is run again, with the same end.
    """
    check_is_store(root, strict=False)
    root = root.resolve()
    lock = StoreLock.acquire(root)
    try:
        plan = plan_repair(root, settings, progress)
        if not plan.rows():
            return Repaired(plan, verify(root, settings=settings))
        repair_log(root, plan.log, settings)
        derived = derived_steps(root, verify(root, True, progress, settings))
        plan = replace(plan, derived=derived)
        move_strangers(root, derived)
        rebuild_damaged(root, derived, settings)
        for step in derived:
            if isinstance(step, FileStep) and step.action == REWRITE_CHECKPOINT:
                rewrite_checkpoint(root, step, plan.log)
        return Repaired(plan, verify(root, True, progress, settings))
    finally:
        lock.release()
