"""Write the fingerprint of each bundled model into its folder, where it is compared when the model is loaded.

    python tools/bundled_fingerprints.py

To be run after a bundled model was changed.
"""

from __future__ import annotations

import sys

from tamis.models.bundled import BUNDLED, FINGERPRINT, bundled_models
from tamis.models.checkpoint import load_checkpoint

if __name__ == "__main__":
    for name in bundled_models():
        fingerprint = load_checkpoint(BUNDLED / name).fingerprint
        (BUNDLED / name / FINGERPRINT).write_text(f"{fingerprint}\n", encoding="utf-8")
        sys.stdout.write(f"{name} {fingerprint}\n")
