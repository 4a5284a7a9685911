package bgp

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestLocal: with policy Local only the nodes with an endpoint announce; without endpoints no node does.
func TestLocal(t *testing.T) {
	before := initial(t)
	local := vip.Next()
	serve(t, "local", strings.ReplaceAll(service("local", local, vip6.Next(), "externalTrafficPolicy: Local"), "app: web}\n  ports", "app: local}\n  ports"))
	routed(t, host(local))
	pod(t, "local1", "local", cluster.Node(1))
	routed(t, host(local), cluster.Node(1).Addr)
	asked(t, local)
	pod(t, "local2", "local", cluster.Node(2))
	routed(t, host(local), nodes(true, cluster.Node(0))...)
	asked(t, local)
	if err := cluster.SetPodReady(t.Context(), "default", "local1", false); err != nil {
		t.Fatal(err)
	}
	routed(t, host(local), cluster.Node(2).Addr)
	asked(t, local)
	end(t, "pod/local2")
	routed(t, host(local))
	same(t, before)
}

// TestExclude: an excluded node advertises GRACEFUL_SHUTDOWN (RFC 8326), then withdraws. No request is lost, except
// those in progress when the routers change next hops; its sessions stay.
func TestExclude(t *testing.T) {
	before := initial(t)
	n := cluster.Node(1)
	answered := clients(t, vip, tors...)
	if err := n.Exclude(t.Context()); err != nil {
		t.Fatal(err)
	}
	included := false
	include := func() {
		if included {
			return
		}
		included = true
		if err := n.Include(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(include)
	logged := map[*tor]bool{}
	cluster.Await(t, patience, "every router receives GRACEFUL_SHUTDOWN from "+n.Name, func(ctx context.Context) error {
		for _, r := range tors {
			paths, err := r.RIB(ctx, host(vip).String())
			if err != nil {
				return err
			}
			for _, p := range paths {
				message := slices.ContainsFunc(p.Communities, func(c string) bool { return c == "65535:0" || c == "gracefulShutdown" || c == "graceful-shutdown" }) // as BIRD and FRR write it
				switch {
				case message && p.From == n.Addr:
					logged[r] = true
				case message:
					t.Errorf("%v sends it, too", p.From)
				}
			}
		}
		if len(logged) < len(tors) {
			return fmt.Errorf("%d of them do", len(logged))
		}
		return nil
	})
	routed(t, host(vip), nodes(true, n)...)
	asked(t, vip)
	include()
	routed(t, host(vip), nodes(true)...)
	answered()
	same(t, before)
}
