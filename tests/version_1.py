"""Run folders as the first format had them: no schema version, and a hash over all values."""

import hashlib
import json
import shutil

from pbwn_repro.runs.folder import RunFolder, to_json


def as_version_1(path):
    """Rewrite a run folder of the present format as the first one had it; return its new place."""
    folder = RunFolder(path)
    config = folder.read_config()
    fields = config.model_dump(mode="json")
    now = hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    folder.config.write_bytes(to_json(fields))
    if folder.result.exists():
        folder.result.write_bytes(to_json({**folder.read_result(), "run": now}))
    if folder.model.exists():
        folder.model.write_bytes(folder.model.read_bytes().replace(config.hash.encode(), now.encode()))
    for manifest in folder.checkpoints.glob("*/manifest.json"):
        body = json.loads(manifest.read_text())["body"].replace(config.hash, now)
        seal = hashlib.sha256(body.encode()).hexdigest()
        manifest.write_text(json.dumps({"body": body, "sha256": seal}))
    return path.rename(path.with_name(f"{config.model}-{config.method}-seed{config.seed}-{now[:8]}"))


def copy_as_version_1(path, out):
    """The same for a copy in another folder."""
    return as_version_1(shutil.copytree(path, out / path.name))
