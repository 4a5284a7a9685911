package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/ironlb/ironlb/test/e2e/scene"
)

// ours is what the speaker made on node1: its tables, and what IPVS and the routes have of the pool.
const ours = `nft -s list table ip ironlb; nft list map ip ironlb-lb virtuals 2>/dev/null; nft list map ip ironlb-lb reals-tcp 2>/dev/null
ipvsadm -Sn 2>/dev/null | grep '192[.]0[.]2[.]1[2-4][0-9]'; ip route show table local | grep '192[.]0[.]2[.]1[2-4][0-9]'`

// theirs is what kube-proxy made, by mode. In mode nftables, chains of a Service that went stay, empty, until something else changes.
var theirs = map[string]string{
	"iptables": "iptables-save | grep KUBE- | grep -v ^:",
	"nftables": "nft -s list table ip kube-proxy | grep -v default/other",
	"ipvs":     "ipvsadm -Sn | grep -v '192[.]0[.]2[.]1[2-4][0-9]'; ip -o addr show dev kube-ipvs0; iptables-save | grep KUBE- | grep -v ^:",
}

// show returns what the script prints on node1, sorted, one element of nftables to a line.
func show(ctx context.Context, script string) (string, error) {
	out, err := node().Exec(ctx, "sh", "-c", "("+script+") | tr ',{}' '\\n\\n\\n' | sed 's/^[ \t]*//; s/elements = *//; s/[ \t]*$//' | sort -u; true")
	if err == nil && strings.TrimSpace(out) == "" {
		err = errors.New("there is nothing")
	}
	return out, err
}

func look(t *testing.T, script string) string {
	t.Helper()
	out, err := show(t.Context(), script)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// same wants the node to be as before.
func same(t *testing.T, whose, script, before string) {
	t.Helper()
	scene.Eventually(t, scene.Programmed, whose+" is as before", func(ctx context.Context) error {
		now, err := show(ctx, script)
		if err == nil && now != before {
			err = errors.New(difference(before, now))
		}
		return err
	})
}

// difference lists the lines that are in one text only.
func difference(before, now string) string {
	a, b := slices.Collect(strings.Lines(before)), slices.Collect(strings.Lines(now))
	var out strings.Builder
	for _, line := range a {
		if !slices.Contains(b, line) {
			fmt.Fprint(&out, "- ", line)
		}
	}
	for _, line := range b {
		if !slices.Contains(a, line) {
			fmt.Fprint(&out, "+ ", line)
		}
	}
	return out.String()
}

// server is who serves an address, and who listens on a port.
type server struct{ speaker, kubeProxy bool }

// servers waits until an address of a Service is served by exactly these.
func servers(t *testing.T, mode string, addr netip.Addr, want server) {
	t.Helper()
	lists := map[string]string{
		"iptables": "iptables-save -t nat",
		"nftables": "nft list table ip kube-proxy",
		"ipvs":     "ip -o addr show dev kube-ipvs0",
	}
	has := func(ctx context.Context, list string) bool {
		_, err := node().Exec(ctx, "sh", "-c", list+" | grep -qE '(^|[^0-9.])"+strings.ReplaceAll(addr.String(), ".", "[.]")+"([^0-9.]|$)'")
		return err == nil
	}
	scene.Eventually(t, scene.Programmed, fmt.Sprintf("%s is served by %+v", addr, want), func(ctx context.Context) error {
		have := server{speaker: has(ctx, "nft list table ip ironlb"), kubeProxy: has(ctx, lists[mode])}
		if have != want {
			return fmt.Errorf("it is by %+v", have)
		}
		return nil
	})
}

// healthPort waits until the program serves a healthCheckNodePort on node1, with one endpoint, and calls nudge as long as it does not.
func healthPort(t *testing.T, port int32, program string, nudge func()) {
	t.Helper()
	scene.Eventually(t, scene.Programmed, "the health check port is served by "+program, func(ctx context.Context) error {
		who, err := node().Exec(ctx, "ss", "-Hltnp", fmt.Sprintf("sport = :%d", port))
		if err != nil {
			return err
		}
		if !strings.Contains(who, `"`+program+`"`) {
			if nudge != nil {
				nudge()
			}
			return fmt.Errorf("it is served by %q", who)
		}
		answer, err := cluster.Client.Exec(ctx, "curl", "-sS", "--max-time", "5", fmt.Sprintf("http://%s:%d/", node().Addr, port))
		if err == nil && !strings.Contains(strings.ReplaceAll(answer, " ", ""), `"localEndpoints":1`) {
			err = fmt.Errorf("it answers %q", answer)
		}
		return err
	})
}

// restorations counts how often the speakers of node1 have put back a virtual server of the address, by their logs.
func restorations(t *testing.T, addr netip.Addr) (n int) {
	t.Helper()
	for _, file := range cluster.LogFiles() {
		if !strings.Contains(file, node().Name+"-ironlb-speaker") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, `msg="add virtual server"`) && strings.Contains(line, "reason=Restored") && strings.Contains(line, addr.String()+":") {
				n++
			}
		}
	}
	return n
}
