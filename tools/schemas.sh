#!/bin/sh
# Checks the files that other services read against their published schemas: tools/schemas.sh .venv/bin
set -eu
conforms() { # SCHEMA FILE...
  schema=$1
  shift
  "$bin/check-jsonschema" --quiet --builtin-schema "vendor.$schema" "$@"
}
bin=$1
conforms github-workflows .github/workflows/*.yml
conforms dependabot .github/dependabot.yml
conforms github-issue-forms .github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/feature.yml
conforms github-issue-config .github/ISSUE_TEMPLATE/config.yml
conforms citation-file-format CITATION.cff
conforms compose-spec compose.yaml
