package metallb

import "testing"

func TestMembers(t *testing.T) {
	have := members([]byte(`{"level":"info","msg":"MetalLB speaker starting version 0.16.2 (no build information)"}
{"msg":"node event - forcing sync","node addr":"192.0.2.12","node event":"NodeJoin","node name":"node2"}
{"msg":"node event - forcing sync","node addr":"192.0.2.13","node event":"NodeJoin","node name":"node3"}
{"msg":"node event - forcing sync","node addr":"192.0.2.12","node event":"NodeLeave","node name":"node2"}
{"msg":"node event - forcing sync","node addr":"192.0.2.13","node event":"NodeUpdate","node name":"node3"}
not JSON
`))
	if len(have) != 2 || have["node2"] || !have["node3"] {
		t.Error(have)
	}
}
