package installed

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/test/lab"
)

// nodeDump is what the tests need of the output of "ironlb-speaker dump --node".
type nodeDump struct {
	Speaker struct {
		Node      string
		DataPlane string
		Status    struct {
			Members []struct{ Node, State string }
		}
		Loop struct {
			Ready      bool
			VirtualIPs []struct {
				Addresses []netip.Addr
				Owner     string
			}
			Services []struct {
				Service   string
				Endpoints []struct{ InUse bool }
			}
		}
	}
	Links  []struct{ Name string }
	Routes []struct{ To, Protocol string }
	Tables []string
	Errors []string
}

// check returns what the dump of a node lacks: the owner, the other nodes, endpoints in use, and the kernel's part.
func (d nodeDump) check(n *lab.Node, addr netip.Addr, owner *lab.Node) error {
	loop := d.Speaker.Loop
	owned, served := false, false
	for _, vip := range loop.VirtualIPs {
		owned = owned || slices.Contains(vip.Addresses, addr) && vip.Owner == owner.Name
	}
	for _, s := range loop.Services {
		served = served || s.Service == "default/web" && len(s.Endpoints) == 6 &&
			!slices.ContainsFunc(s.Endpoints, func(e struct{ InUse bool }) bool { return !e.InUse })
	}
	local := slices.ContainsFunc(d.Routes, func(r struct{ To, Protocol string }) bool { return r.To == addr.String()+"/32" })
	if d.Speaker.Node != n.Name || d.Speaker.DataPlane == "" || !loop.Ready || len(d.Speaker.Status.Members) != len(cluster.Nodes)-1 ||
		!owned || !served || !local || len(d.Links) < 2 || !slices.Contains(d.Tables, "ip ironlb") || len(d.Errors) > 0 {
		return fmt.Errorf("owner %t, endpoints %t, local route %t: %+v", owned, served, local, d)
	}
	return nil
}

// TestSysdump: the archive of a real cluster has each part and the content of no Secret. Without the API server the
// dump of each node is complete.
func TestSysdump(t *testing.T) {
	cluster.Need(t)
	service := serve(t)
	owner := ownerOf(t, service.Addr())
	settled(t)
	if err := cluster.Tools().Own(t.Context(), "cmd/kubectl-ironlb"); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "sysdump.tar.gz")
	out, err := cluster.Management.Exec(t.Context(), "env", "KUBECONFIG="+cluster.Kubeconfig(), cluster.Program("kubectl-ironlb"), "sysdump", "-o", file)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	content := unpack(t, file)
	var pods corev1.PodList
	if err := cluster.Objects.List(t.Context(), &pods); err != nil {
		t.Fatal(err)
	}
	containers := map[*lab.Node]string{} // of the speakers
	for _, p := range pods.Items {
		if p.Namespace != lab.SystemNamespace {
			continue
		}
		for _, c := range p.Status.ContainerStatuses {
			if path := "logs/" + p.Name + "/" + c.Name + ".log"; !strings.Contains(content[path], "start") {
				t.Errorf("%s: %.1000s", path, content[path])
			}
			if n := cluster.NodeByName(p.Spec.NodeName); c.Name == "ironlb-speaker" {
				containers[n] = strings.TrimPrefix(c.ContainerID, "containerd://")
				var d nodeDump
				path := "nodes/" + n.Name + "/" + p.Name + ".json"
				if err := json.Unmarshal([]byte(content[path]), &d); err != nil {
					t.Errorf("%s: %v", path, err)
				} else if err := d.check(n, service.Addr(), owner); err != nil {
					t.Errorf("%s: %v", path, err)
				}
			}
		}
	}
	for path, want := range map[string]string{
		"objects/services.yaml": "name: web", "objects/endpointslices.yaml": "name: web-", "objects/nodes.yaml": "name: " + owner.Name,
		"objects/virtualips.yaml": service.Addr().String(), "objects/speakerstatuses.yaml": "schedulingClass", "objects/ipaddresspools.yaml": "kind: IPAddressPool",
		"objects/events.yaml": "ironlb", "objects/daemonsets.yaml": "name: ironlb-speaker", "objects/deployments.yaml": "name: ironlb-ccm",
		"objects/leases.yaml": "holderIdentity", "objects/configmaps.yaml": "speaker.yaml", "objects/kube-proxy.yaml": "nftables", "version.txt": "kubectl-ironlb",
	} {
		if !strings.Contains(content[path], want) {
			t.Errorf("%s lacks %q:\n%.1000s", path, want, content[path])
		}
	}
	noSecrets(t, content)
	if err := cluster.StopAPIServer(); err != nil {
		t.Fatal(err)
	}
	for _, n := range cluster.Nodes {
		var d nodeDump
		out, err := n.Kubelet().ExecIn(t.Context(), containers[n], "ironlb-speaker", "dump", "--node")
		if err := errors.Join(err, json.Unmarshal([]byte(out), &d)); err != nil {
			t.Errorf("%s without the API server: %v\n%.1000s", n.Name, err, out)
		} else if err := d.check(n, service.Addr(), owner); err != nil {
			t.Errorf("%s without the API server: %v", n.Name, err)
		}
	}
	if err := cluster.StartAPIServer(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
	settled(t)
}

// noSecrets checks the archive against every Secret of the cluster, as it is and as the API has it.
func noSecrets(t *testing.T, content map[string]string) {
	t.Helper()
	secrets, err := cluster.Kube.CoreV1().Secrets(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for _, s := range secrets.Items {
		for key, value := range s.Data {
			if value = bytes.TrimSpace(value); len(value) < 16 {
				continue // it may occur by chance
			}
			compared++
			for path, text := range content {
				if strings.Contains(text, string(value)) || strings.Contains(text, base64.StdEncoding.EncodeToString(value)) {
					t.Errorf("%s has %s of Secret %s/%s", path, key, s.Namespace, s.Name)
				}
			}
		}
	}
	if compared == 0 {
		t.Errorf("nothing to compare in %d Secrets: not even the keys of the speakers", len(secrets.Items))
	}
}

// unpack returns the files of the archive, without its folder.
func unpack(t *testing.T, file string) map[string]string {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	content := map[string]string{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return content
		}
		if err != nil {
			t.Fatal(err)
		}
		_, path, _ := strings.Cut(h.Name, "/")
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		content[path] = string(data)
	}
}
