package e2e

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/test/e2e/scene"
	"github.com/ironlb/ironlb/test/lab/guest"
)

// TestExplain: for each cause on the nodes, kubectl ironlb explain names it and what to do, and finds no problem once it
// is gone. Those before the nodes are in test/ccm.
func TestExplain(t *testing.T) {
	service(t, "explained", func(svc *corev1.Service) {
		svc.Annotations = map[string]string{v1alpha1.AnnotationAddresses: "192.0.2.143"}
	})
	explained := func(cause, step string) {
		t.Helper()
		cluster.AwaitExplained(t, patience, "explained", cause, step)
	}
	patch := func(kind, name, spec string) {
		t.Helper()
		if _, err := cluster.Kubectl(context.Background(), "patch", kind, name, "--type=merge", "-p", `{"spec": `+spec+`}`); err != nil {
			t.Fatal(err)
		}
	}
	const works = `Owner +192.0.2.143 +OK +Owner: node\d answers on eth0 since `
	explained("Problem NoEndpoint", `Endpoints +80/TCP +Problem +NoEndpoint: no ready IPv4 endpoint, .*selector "app=explained"`)
	patch("svc", "explained", `{"externalTrafficPolicy": "Local"}`)
	explained("Problem NoLocalEndpoint", `Owner +192.0.2.143 +Problem +NoLocalEndpoint: `)
	pod(t, "explained-1", "explained", cluster.Node(0))
	explained("no problem", works)
	explained("no problem", `Endpoints +80/TCP +OK +1 ready IPv4 endpoints on node1; externalTrafficPolicy is Local`)
	patch("svc", "explained", `{"externalTrafficPolicy": "Cluster"}`)

	t.Cleanup(func() { patch("l2advertisements.ironlb.io", "lan", `{"interfaces": null, "nodeSelectors": null}`) })
	patch("l2advertisements.ironlb.io", "lan", `{"interfaces": ["eth9"]}`)
	explained("Problem NoInterface", `Owner +192.0.2.143 +Problem +NoInterface: no interface is up .*: interfaces names eth9; node node\d has .*eth0`)
	patch("l2advertisements.ironlb.io", "lan", `{"interfaces": null, "nodeSelectors": [{"matchLabels": {"rack": "none"}}]}`)
	explained("Problem NoNodeMatches", `Node +node1 +Info +NotSelected: nodeSelectors of L2Advertisement lan do not match it`)
	patch("l2advertisements.ironlb.io", "lan", `{"nodeSelectors": null}`)
	explained("no problem", works)

	// The only node that may have the address cannot forward.
	if dataplane == scene.NFTables && guest.Probe() != nil { // there is another data plane, which the kernel lacks
		n, config := cluster.Node(0), filepath.Join(t.TempDir(), "speaker.yaml")
		if err := os.WriteFile(config, []byte("dataplane: ipvs\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		patch("l2advertisements.ironlb.io", "lan", `{"nodeSelectors": [{"matchLabels": {"kubernetes.io/hostname": "`+n.Name+`"}}]}`)
		explained("no problem", `Owner +192.0.2.143 +OK +Owner: `+n.Name+` answers `)
		if err := errors.Join(n.StopSpeaker(), n.StartSpeaker(t.Context(), "--config", config)); err != nil {
			t.Fatal(err)
		}
		explained("Problem DataPlaneNotReady", `Owner +192.0.2.143 +Problem +DataPlaneNotReady: .*its virtual servers could not be programmed`)
		if err := errors.Join(n.StopSpeaker(), startSpeaker(t.Context(), n)); err != nil {
			t.Fatal(err)
		}
		explained("no problem", `Owner +192.0.2.143 +OK +Owner: `+n.Name+` answers `)
		patch("l2advertisements.ironlb.io", "lan", `{"nodeSelectors": null}`)
	}

	// The owner's speaker is gone: another node answers, and the node is explained.
	gone := owner(t, address(t, "explained"), "a node", func(string) bool { return true })
	if err := gone.StopSpeaker(); err != nil {
		t.Fatal(err)
	}
	explained("no problem", `Node +`+gone.Name+` +Info +Stopped: its speaker is gone`)
	if err := startSpeaker(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	explained("no problem", `Node +`+gone.Name+` +Info +Standby: number \d of the nodes that take over`)

	// Another host has the address.
	deleteService(t, "explained")
	other := func(verb string) {
		t.Helper()
		if _, err := cluster.Router.Exec(context.Background(), "ip", "addr", verb, "192.0.2.143/32", "dev", "eth0"); err != nil {
			t.Error(err)
		}
	}
	other("add")
	service(t, "explained", func(svc *corev1.Service) {
		svc.Annotations = map[string]string{v1alpha1.AnnotationAddresses: "192.0.2.143"}
	})
	explained("Problem AddressConflict", `Owner +192.0.2.143 +Problem +AddressConflict: .*`+cluster.Router.MAC())
	other("del")
	explained("no problem", works)
}
