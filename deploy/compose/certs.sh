#!/bin/sh
# The first run makes a CA in /ca, which only this container sees, and the files of each service and of a client in
# /certs. With --renew, the script makes new certificates of the same CA; services take them without a restart.
set -eu
# client.pem is written last
if [ ! -e /ca/client.pem ] || [ "${1:-}" = --renew ]; then
  tandem certs /ca --force --name orchestrator --name verifier --name drafter
fi
for role in verifier drafter orchestrator client; do
  install -m 0600 "/ca/$role-key.pem" "/certs/$role/key.pem"
  install -m 0644 "/ca/$role.pem" "/certs/$role/cert.pem"
  install -m 0644 /ca/ca.pem "/certs/$role/ca.pem"
done
