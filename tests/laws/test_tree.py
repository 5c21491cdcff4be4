"""The properties that follow from `parents` alone, compared to the plainest way to compute them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandem.protos import tree
from tests.laws.segments import trees

Parents = tuple[int, ...]
parents_of_trees = trees(24)


def path_to(parents: Parents, node: int) -> list[int]:
    """Return the nodes from the root's child down to `node`."""
    path: list[int] = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


@given(parents_of_trees)
def test_a_depth_counts_the_nodes_between_a_node_and_the_root(parents: Parents) -> None:
    assert tree.depths(parents) == [len(path_to(parents, node)) - 1 for node in range(len(parents))]


@given(parents_of_trees)
def test_children_are_in_order_and_every_node_is_the_child_of_its_parent_alone(
    parents: Parents,
) -> None:
    found = tree.children(parents)
    assert len(found) == len(parents) + 1
    for parent in range(-1, len(parents)):
        assert found[parent + 1] == [
            node for node in range(len(parents)) if parents[node] == parent
        ]


@given(parents_of_trees)
def test_a_tree_is_a_chain_exactly_if_no_node_has_a_sibling(parents: Parents) -> None:
    assert tree.is_chain(parents) == (len(set(parents)) == len(parents))


@given(st.integers(0, 8), parents_of_trees)
def test_a_hung_tree_keeps_its_paths_below_the_chain(length: int, parents: Parents) -> None:
    hung = tree.hang(length, parents)
    assert tree.problem(hung) is None
    assert hung[:length] == tree.chain(length)
    for node in range(len(parents)):
        below = [length + step for step in path_to(parents, node)]
        assert path_to(hung, length + node) == [*range(length), *below]


@given(parents_of_trees)
def test_the_trunk_is_the_longest_start_that_is_a_chain(parents: Parents) -> None:
    chains = [size for size in range(len(parents) + 1) if tree.is_chain(parents[:size])]
    assert tree.trunk(parents) == max(chains)


@given(parents_of_trees.filter(len), st.data())
def test_a_parent_that_is_not_earlier_is_a_problem_that_names_node_and_limit(
    parents: Parents, data: st.DataObject
) -> None:
    node = data.draw(st.integers(0, len(parents) - 1))
    parent = data.draw(st.integers(node, 2 * len(parents)) | st.integers(-9, -2))
    broken = (*parents[:node], parent, *parents[node + 1 :])
    assert tree.problem(broken) == f"of node {node} is {parent}, not in -1..{node - 1}"


@given(parents_of_trees.filter(len), st.data())
def test_a_path_leads_from_the_root_to_a_node(parents: Parents, data: st.DataObject) -> None:
    node = data.draw(st.integers(0, len(parents) - 1))
    assert tree.path(parents, node) == path_to(parents, node)
    assert tree.path(parents, -1) == []


@given(parents_of_trees.filter(len), st.data())
def test_runs_are_the_nodes_in_order_cut_where_one_is_not_the_next_ones_parent(
    parents: Parents, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, len(parents) - 1))
    found = tree.runs(parents, first)
    assert [node for run in found for node in run] == list(range(first, len(parents)))
    for run in found:
        assert len(run) and all(parents[node] == node - 1 for node in run[1:])
    assert all(parents[run.start] != run.start - 1 for run in found[1:]), "cut needlessly"
