"""Whether a request is genuine: `proof.make_check` gives the one check a source needs, compiled once.

Each kind of proof is a module: `macs` (a MAC over a template), `fields` (a MAC or hash over stated fields),
`asymmetric` and `jwt` (public keys, parsed by `publickeys` and kept in the `keyring`), `tokens`, and `origins`
(addresses). They share `stamps` (signed moments) and `statements` (what is stated under which signature). `hints`
explains to the operator why a proof may not have held. Nothing here waits or raises, whatever a stranger sends.
"""
