"""Serve many sessions on one model. Drafter and verifier share this code, which contains everything
that runs a model in torch.

The engine must not know what logits are used for: it knows neither commits nor proposals nor how
drafts are accepted. Start reading in `schedule.scheduler`, whose thread runs the steps, and then in
`runner`, which runs a forward pass. `host` puts all parts together.
"""
