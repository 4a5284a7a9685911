package ui

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/test/eventually"
	"github.com/ironlb/ironlb/test/lab/controlplane"
)

const (
	manyNodes     = 200
	manyAddresses = 5000
	hostile       = `<img src=x onerror="window.hostile=1"><script>window.hostile=1</script>`
)

// many serves the lists of a large cluster as an API server does, and returns a kubeconfig.
func many(t *testing.T) string {
	t.Helper()
	var vips v1alpha1.VirtualIPList
	var services corev1.ServiceList
	var speakers v1alpha1.SpeakerStatusList
	for i := range manyNodes {
		s := v1alpha1.SpeakerStatus{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%03d", i)}}
		s.Status.DataPlane = v1alpha1.DataPlaneStatus{Healthy: true, Reason: "Programmed"}
		s.Status.BGP = &v1alpha1.BGPStatus{Sessions: []v1alpha1.SessionStatus{{Peer: "tor", Address: "192.0.2.1", State: v1alpha1.SessionEstablished, Prefixes: manyAddresses}}}
		if i == 1 {
			s.Status.DataPlane = v1alpha1.DataPlaneStatus{Reason: hostile, Message: hostile}
			s.Status.BGP.Sessions[0] = v1alpha1.SessionStatus{Peer: hostile, Address: hostile, State: hostile, Reason: hostile, Message: hostile}
		}
		speakers.Items = append(speakers.Items, s)
	}
	for i := range manyAddresses {
		v := v1alpha1.VirtualIP{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("10.0.%d.%d", i/250, i%250)}}
		name := fmt.Sprintf("service-%d", i)
		v.Spec = v1alpha1.VirtualIPSpec{Addresses: []string{v.Name}, Services: []v1alpha1.ServiceReference{{Namespace: "tenants", Name: name}}}
		v.Status.Node = speakers.Items[i%manyNodes].Name
		v.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionAnnounced, Status: metav1.ConditionTrue, Reason: "Owner"}}
		vips.Items = append(vips.Items, v)
		svc := corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "tenants", Name: name}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer}}
		svc.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionAddresses, Status: metav1.ConditionTrue, Message: v.Name + "=lan"}}
		services.Items = append(services.Items, svc)
	}
	events := corev1.EventList{Items: []corev1.Event{{Reason: "OwnerLost", LastTimestamp: metav1.Now(), Message: "node node-001 answers for 10.0.0.1 in place of node " + strings.ReplaceAll(hostile, " ", "/") + " after 312ms: " + hostile}}}
	lists := map[string]any{"virtualips": vips, "services": services, "speakerstatuses": speakers, "events": events}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		resource := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
		if strings.Contains(r.URL.Path, "/namespaces/") { // of the Deployment: run in another way
			w.WriteHeader(http.StatusNotFound)
			resource = ""
		}
		w.Header().Set("Content-Type", "application/json")
		items := json.RawMessage("[]")
		if l, is := lists[resource]; is {
			items, _ = json.Marshal(reflect.ValueOf(l).FieldByName("Items").Interface())
		}
		fmt.Fprintf(w, `{"metadata": {}, "items": %s}`, items)
	})
	var listener net.Listener
	err := controlplane.Within(cluster.Management.Namespace, func() (err error) {
		listener, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: handler}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	kubeconfig := filepath.Join(t.TempDir(), "config")
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "large", "clusters": [{"name": "c", "cluster": {"server": "http://%s"}}],
		"contexts": [{"name": "large", "context": {"cluster": "c"}}]}`, listener.Addr())
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return kubeconfig
}

// TestLarge: with 200 nodes and 5,000 addresses the page counts them all, draws few and finds each by the filter, and no
// text of the cluster becomes HTML.
func TestLarge(t *testing.T) {
	url := startUI(t, many(t))
	b := startBrowser(t)
	b.show(t, 1280, 900, "light")
	b.open(t, url)
	const count = `({elements: document.querySelectorAll('*').length, hostile: window.hostile ?? 0, images: document.querySelectorAll('main img, main script').length,
		totals: document.getElementById('totals').innerText, text: document.querySelector('main').innerText})`
	var got struct {
		Elements, Hostile, Images int
		Totals, Text              string
	}
	cluster.Await(t, patience, "the page shows all addresses", func(context.Context) error {
		b.eval(t, count, &got)
		return eventually.Unless(strings.Contains(got.Totals, "5,000\n") && strings.Contains(got.Totals, "199 of 200\n"), "it shows %s", got.Totals)
	})
	if got.Elements > 6000 {
		t.Errorf("%d elements", got.Elements)
	}
	if n := strings.Count(got.Text, hostile); n < 6 || got.Images > 0 || got.Hostile > 0 {
		t.Errorf("%d hostile texts as text, %d as elements, %d executed:\n%s", n, got.Images, got.Hostile, got.Text)
	}
	for filter, want := range map[string]string{"10.0.19.249": "tenants/service-4999", "tenants/service-777": "10.0.3.27", "node-117": "10.0.0.117", "nothing": "Nothing passes the filter."} {
		b.eval(t, fmt.Sprintf(`document.getElementById('filter').value = %q; document.getElementById('filter').dispatchEvent(new Event('input'))`, filter), nil)
		b.eval(t, count, &got)
		if !strings.Contains(got.Text, want) || got.Elements > 2000 {
			t.Errorf("filter %s, %d elements:\n%s", filter, got.Elements, got.Text)
		}
	}
	// All addresses of one node.
	b.eval(t, `document.getElementById('filter').value = 'node-117'; document.getElementById('filter').dispatchEvent(new Event('input'));
		document.querySelector('#nodes button').focus(); document.querySelector('#nodes button').click()`, nil)
	var all struct {
		Rows  int
		Focus string
	}
	b.eval(t, `({rows: document.querySelectorAll('#nodes .rows .address').length, focus: document.activeElement.textContent})`, &all)
	if all.Rows != manyAddresses/manyNodes || all.Focus != "fewer" {
		t.Errorf("%+v", all)
	}
	b.clean(t, url)
}
