"""The contract between the services and their clients: the values that they exchange, the messages
that carry these values, and the parts that every process needs. All other code may import this
package, so it must import no service, no engine and no PyTorch. To understand this package, read
`streams` and `types` first, which define the values. The schemas are in `tandem/v1`.
"""
