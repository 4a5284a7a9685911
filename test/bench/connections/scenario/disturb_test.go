package scenario

import "testing"

// TestRotate: values move to the next key, in maps of the table alone, and only where they differ.
func TestRotate(t *testing.T) {
	const ruleset = `{"nftables": [{"metainfo": {"json_schema_version": 1}}, {"table": {"family": "ip", "name": "ironlb-direct"}},
{"map": {"family": "ip", "name": "slots", "table": "ironlb-direct", "type": ["ipv4_addr", "inet_service", "integer"], "map": "mark",
 "elem": [[{"concat": ["192.0.2.129", 90, 0]}, 1], [{"concat": ["192.0.2.129", 90, 1]}, 2], [{"concat": ["192.0.2.129", 90, {"range": [2, 9]}]}, 2]]}},
{"map": {"family": "ip", "name": "nodes", "table": "ironlb-direct", "type": "mark", "map": "verdict",
 "elem": [[1, {"goto": {"target": "a"}}], [{"elem": {"val": 2, "comment": "x"}}, {"jump": {"target": "b"}}]]}},
{"map": {"family": "ip", "name": "equal", "table": "ironlb-direct", "type": "mark", "map": "mark", "elem": [[1, 7], [2, 7]]}},
{"map": {"family": "ip", "name": "empty", "table": "ironlb-direct", "type": "mark", "map": "mark"}},
{"map": {"family": "ip", "name": "nodes", "table": "ironlb-lb", "type": "mark", "map": "mark", "elem": [[1, 2], [2, 3]]}}]}`
	want := `delete element ip ironlb-direct slots { 192.0.2.129 . 90 . 0, 192.0.2.129 . 90 . 1, 192.0.2.129 . 90 . 2-9 }
add element ip ironlb-direct slots { 192.0.2.129 . 90 . 0 : 2, 192.0.2.129 . 90 . 1 : 2, 192.0.2.129 . 90 . 2-9 : 1 }
delete element ip ironlb-direct nodes { 1, 2 }
add element ip ironlb-direct nodes { 1 : jump b, 2 : goto a }
`
	if have, err := rotate([]byte(ruleset)); err != nil || have != want {
		t.Errorf("%v\n%s\nwant\n%s", err, have, want)
	}
	if have, err := rotate([]byte(`{"nftables": []}`)); err != nil || have != "" {
		t.Errorf("without the table: %q, %v", have, err)
	}
}

// TestScenarios: each one is in the table of an address on the LAN or of a routed one, and has a fault to inject.
func TestScenarios(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range append(Of(false), Of(true)...) {
		seen[s.Name] = true
	}
	for _, s := range All {
		if !seen[s.Name] || s.inject == nil {
			t.Errorf("%+v", s)
		}
		if _, err := Named(s.Name); err != nil {
			t.Error(err)
		}
	}
	if _, err := Named("no such fault"); err == nil {
		t.Error("a fault without a scenario is found")
	}
}
