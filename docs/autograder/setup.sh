#!/usr/bin/env bash
# Runs once, when Gradescope builds the image. minidist's repository lies in source/minidist, packed into the zip file.
set -euo pipefail
autograder=${AUTOGRADER:-/autograder}

apt-get update
apt-get install -y python3 python3-venv
python3 -m venv "$autograder/venv"
"$autograder/venv/bin/pip" install -e "$autograder/source/minidist[course]"
