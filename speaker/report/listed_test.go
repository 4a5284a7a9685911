package report

import (
	"fmt"
	"testing"
)

// TestListed: up to ListAll members are all listed. Of more, each node lists eight, and those list it; a node that is
// no member is listed by eight.
func TestListed(t *testing.T) {
	for _, nodes := range []int{2, ListAll + 1, ListAll + 2, 100, 1000} {
		var names []string
		for i := range nodes {
			names = append(names, fmt.Sprintf("rack%d-node%03d", i/20, i))
		}
		lists := map[string]func(string) bool{}
		for _, name := range names {
			members := map[string]MemberState{}
			for _, other := range names {
				if other != name {
					members[other] = MemberAlive
				}
			}
			lists[name] = Listed(name, members)
		}
		want, rack, foreign := nodes-1, 0, 0
		if want > ListAll {
			want = 2 * Neighbors
		}
		for _, name := range names {
			n := 0
			for _, other := range names {
				if other == name || !lists[name](other) {
					continue
				}
				n++
				if other[:6] == name[:6] {
					rack++
				}
				if !lists[other](name) {
					t.Errorf("%d nodes: %s lists %s, not the reverse", nodes, name, other)
				}
			}
			if n != want {
				t.Errorf("%d nodes: %s lists %d, want %d", nodes, name, n, want)
			}
			if lists[name]("foreign") {
				foreign++
			}
		}
		if nodes > ListAll+1 && foreign != 2*Neighbors {
			t.Errorf("%d nodes: %d list a node that is no member", nodes, foreign)
		}
		if nodes == 1000 && rack > nodes*2*Neighbors/10 {
			t.Errorf("%d of %d neighbors are in the same rack", rack, nodes*2*Neighbors)
		}
	}
}

// TestListedJoin: a node that joins changes the lists of its neighbors only.
func TestListedJoin(t *testing.T) {
	const nodes = 200
	members := map[string]MemberState{"new": MemberAlive}
	for i := range nodes {
		members[fmt.Sprint("node-", i)] = MemberAlive
	}
	lists := func(node string) (out string) {
		others := map[string]MemberState{}
		for name := range members {
			if name != node {
				others[name] = MemberAlive
			}
		}
		listed := Listed(node, others)
		for i := range nodes {
			if other := fmt.Sprint("node-", i); other != node && listed(other) {
				out += " " + other
			}
		}
		return out
	}
	after, changed := map[string]string{}, 0
	for i := range nodes {
		after[fmt.Sprint("node-", i)] = lists(fmt.Sprint("node-", i))
	}
	delete(members, "new")
	for name, list := range after {
		if lists(name) != list {
			changed++
		}
	}
	if changed != 2*Neighbors {
		t.Errorf("the lists of %d nodes changed, want %d", changed, 2*Neighbors)
	}
}
