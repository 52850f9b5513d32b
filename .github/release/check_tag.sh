#!/usr/bin/env bash
# The tag in GITHUB_REF_NAME must be v and the version of the package, and CHANGELOG.md must have a heading for it.
set -euo pipefail
cd "$(dirname "$0")/../.."
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' guardwrap/__init__.py)
if [ "$GITHUB_REF_NAME" != "v$version" ]; then
  printf 'the tag is %q, but the version is %s; the two must agree\n' "$GITHUB_REF_NAME" "$version" >&2
  exit 1
fi
if ! grep -q "^## ${version//./\\.} - [0-9]" CHANGELOG.md; then
  printf 'CHANGELOG.md has no heading for %s\n' "$version" >&2
  exit 1
fi
