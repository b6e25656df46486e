import torch

from normalign_reproduction.provenance import provenance


def test_provenance_names_what_made_a_number():
    about = provenance()
    assert about["versions"]["torch"].startswith(torch.__version__.split("+")[0])
    assert about["threads"] == torch.get_num_threads()
    commit = about["commit"]
    assert commit is None or len(commit.removesuffix("+changes")) == 40
