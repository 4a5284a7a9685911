package direct

import (
	"fmt"

	"sigs.k8s.io/knftables"
)

// A duplicate passes the output hook with the addresses and ports of the client's packet (nf_dup_ipv4, ip_local_out).
// There the packet filter would drop it on a node without endpoints (at -99), IPVS would forward it to an endpoint of
// this node or refuse it (ip_vs_in_hook, -98), and ipvs/nftlb would refuse it (-90). So until then it has another
// protocol, for which there is no virtual server. Its header checksum stays that of its own.
const hiddenFrom, hiddenUntil = -300, -85

// hidden are the values that replace a protocol (RFC 3692 and unassigned ones). No host receives them.
var hidden = []struct{ protocol, value int }{{6, 253}, {17, 254}, {132, 252}}

// hiddenHeaders are those that replace the first extension header of IPv6: hop-by-hop options, routing, destination
// options.
var hiddenHeaders = []struct{ protocol, value int }{{0, 251}, {43, 250}, {60, 249}}

// notDuplicate matches what does not leave through a tunnel.
const notDuplicate = `oifname != "` + devicePrefix + `*" return`

// duplicates returns the chains that only duplicates pass.
func duplicates(of family) []chain {
	hide, show := []string{notDuplicate}, []string{notDuplicate}
	field, all := "@nh,72,8", hidden
	if of.name == knftables.IPv4Family {
		hide = append(hide, restoreFlags)
	} else {
		field, all = "@nh,48,8", append(all[:len(all):len(all)], hiddenHeaders...)
	}
	for _, h := range all { // nft updates the checksum of a named field
		hide = append(hide, fmt.Sprintf("%[1]s %[2]d %[1]s set %[3]d return", field, h.protocol, h.value))
		show = append(show, fmt.Sprintf("%[1]s %[2]d %[1]s set %[3]d return", field, h.value, h.protocol))
	}
	return []chain{
		{name: "output", hook: knftables.OutputHook, priority: hiddenFrom, rules: hide},
		{name: "output-restore", hook: knftables.OutputHook, priority: hiddenUntil, rules: show},
	}
}

// restoreFlags removes the mark of fragmentable, and DF.
const restoreFlags = `ip frag-off 0xc000 ip frag-off set 0x0`
