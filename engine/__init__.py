"""Serve many sessions on one model: the code that drafter and verifier share, with all that runs a
model in torch.

The engine must not know what logits are used for: it knows neither commits nor proposals nor how
drafts are accepted. Start reading in `schedule.scheduler`, whose thread runs a step, and then in
`runner`, which runs the forward pass; `host` puts all parts together.
"""
