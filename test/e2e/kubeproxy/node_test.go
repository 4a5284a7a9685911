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
	"time"
)

// ours lists the speaker's state on node1: its tables, and IPVS and routes of the pool.
const ours = `nft -s list table ip ironlb; nft list map ip ironlb-lb virtuals 2>/dev/null; nft list map ip ironlb-lb reals-tcp 2>/dev/null
ipvsadm -Sn 2>/dev/null | grep '192[.]0[.]2[.]1[2-4][0-9]'; ip route show table local | grep '192[.]0[.]2[.]1[2-4][0-9]'`

// theirs lists kube-proxy's state, by mode. In mode nftables, empty chains of deleted objects stay until the next
// change.
var theirs = map[string]string{
	"iptables": "iptables-save | grep KUBE- | grep -v ^:",
	"nftables": "nft -s list table ip kube-proxy | sed -E '/^[[:space:]]*chain .*[{]$/ { N; /\\n[[:space:]]*[}]$/d }'",
	"ipvs":     "ipvsadm -Sn | grep -v '192[.]0[.]2[.]1[2-4][0-9]'; ip -o addr show dev kube-ipvs0; iptables-save | grep KUBE- | grep -v ^:",
}

// show returns the sorted output of the script on node1, one element of nftables to a line.
func show(ctx context.Context, script string) (string, error) {
	out, err := node().Exec(ctx, "sh", "-c", "("+script+") | tr ',{}' '\\n\\n\\n' | sed 's/^[ \t]*//; s/elements = *//; s/[ \t]*$//' | sort -u; true")
	return strings.TrimLeft(out, "\n"), err
}

// output fails unless the script prints something, nothing fails if it does.
func output(t *testing.T, script string) string {
	t.Helper()
	out, err := show(t.Context(), script)
	if err != nil || out == "" {
		t.Fatalf("nothing is shown (%v) by %s", err, script)
	}
	return out
}

func nothing(t *testing.T, what, script string) {
	t.Helper()
	if out, err := show(t.Context(), script); err != nil || out != "" {
		t.Errorf("%s: %v\n%s", what, err, out)
	}
}

// same waits until the node's state is as before.
func same(t *testing.T, whose, script, before string) {
	t.Helper()
	cluster.Await(t, patience, whose+" is as before", func(ctx context.Context) error {
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

// server is the set of programs that serve an address or listen on a port.
type server struct{ speaker, kubeProxy bool }

// servers waits until an address of a Service is served by exactly these.
func servers(t *testing.T, mode string, addr netip.Addr, want server) {
	t.Helper()
	lists := map[string]string{
		"iptables": "iptables-save -t nat",
		"nftables": "nft list table ip kube-proxy",
		"ipvs":     "ip -o addr show dev kube-ipvs0",
	}
	has := func(ctx context.Context, list string) (bool, error) {
		out, err := node().Exec(ctx, "sh", "-c", list+" | grep -E '(^|[^0-9.])"+strings.ReplaceAll(addr.String(), ".", "[.]")+"([^0-9.]|$)'; true")
		return out != "", err
	}
	cluster.Await(t, patience, fmt.Sprintf("%s is served by %+v", addr, want), func(ctx context.Context) error {
		bySpeaker, err := has(ctx, "nft list table ip ironlb")
		byKubeProxy, err2 := has(ctx, lists[mode])
		have := server{speaker: bySpeaker, kubeProxy: byKubeProxy}
		if err := errors.Join(err, err2); err != nil || have == want {
			return err
		}
		return fmt.Errorf("it is by %+v", have)
	})
}

// healthPort waits until the program serves a healthCheckNodePort on node1, with one endpoint, and calls nudge until
// then.
func healthPort(t *testing.T, port int32, program string, nudge func()) {
	t.Helper()
	cluster.Await(t, patience, "the health check port is served by "+program, func(ctx context.Context) error {
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

// restorations returns the times when node1's speakers restored the virtual server of TCP at that port, or several
// virtual servers, from their logs.
func restorations(t *testing.T, at netip.AddrPort) (times []time.Time) {
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
			if !strings.Contains(line, `msg="add virtual server"`) || !strings.Contains(line, "reason=Restored") ||
				!strings.Contains(line, fmt.Sprintf(`virtual="TCP %s"`, at)) && !strings.Contains(line, " times=") {
				continue
			}
			_, stamp, _ := strings.Cut(line, "time=")
			stamp, _, _ = strings.Cut(stamp, " ")
			when, err := time.Parse(time.RFC3339Nano, stamp)
			if err != nil {
				t.Fatalf("log line %q: %v", line, err)
			}
			times = append(times, when)
		}
	}
	slices.SortFunc(times, time.Time.Compare)
	return times
}
