#!/usr/bin/env bash
# Gradescope runs this once, to build the image. The zip file puts minidist's repository in source/minidist.
set -euo pipefail
autograder=${AUTOGRADER:-/autograder}

apt-get update
apt-get install -y python3 python3-venv
python3 -m venv "$autograder/venv"
"$autograder/venv/bin/pip" install -e "$autograder/source/minidist[course]"
