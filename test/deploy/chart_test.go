// Package deploy tests the Helm chart and the files generated from it, without a cluster.
package deploy

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/ironlb/ironlb/test/deploy/chart"
	"github.com/ironlb/ironlb/test/lab/manifest"
)

func open(t *testing.T) *chart.Chart {
	t.Helper()
	if testing.Short() {
		t.Skip("needs Helm, which takes minutes to build the first time")
	}
	c, err := chart.Open(t.Context(), t.Output(), chart.Versions...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func template(t *testing.T, c *chart.Chart, release, namespace string, flags ...string) manifest.Documents {
	t.Helper()
	docs, err := c.Template(t.Context(), chart.Versions[0], release, namespace, flags...)
	if err != nil {
		t.Fatal(err)
	}
	return docs
}

// all is every object that the chart can create.
var all = []string{"--set", "namespace.create=true", "--set=pools.a.addresses={192.0.2.1/32},bgpPeers.a.myASN=1,bfdProfiles.a.receiveInterval=300,communities.a.communities[0].name=x",
	"--set=serviceProxy=true,apiServer.host=192.0.2.10,apiServer.port=6443,kubeProxyCleanup.image=registry.example/kube-proxy:v1",
	"--set=l2Advertisements.a.ipAddressPools={a},bgpAdvertisements.a.ipAddressPools={a}",
	"--set=metrics.secure=true,metrics.tlsSecret=c,metrics.readers[0].namespace=b,metrics.readers[0].name=a",
	"--set=metrics.serviceMonitor.enabled=true,metrics.serviceMonitor.tlsConfig.serverName=x,metrics.prometheusRule.enabled=true,metrics.dashboard.enabled=true"}

// TestGenerated: the files in the repository equal those generated from the chart.
func TestGenerated(t *testing.T) {
	c := open(t)
	files, err := c.Generated(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		have, err := os.ReadFile(filepath.Join(c.Root, name))
		if err != nil {
			t.Error(err)
		} else if string(have) != want {
			t.Errorf("%s is not what the chart gives: run make generate", name)
		}
	}
}

// TestHelmVersions: each version of Helm renders the same objects, and lint reports no error.
func TestHelmVersions(t *testing.T) {
	c := open(t)
	var texts []string
	for _, version := range chart.Versions {
		if out, err := c.Run(t.Context(), version, "lint", "--strict", "--kube-version", chart.Oldest, c.Path()); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		docs, err := c.Template(t.Context(), version, "ironlb", "ironlb-system", append(all, "--include-crds")...)
		if err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(docs, func(a, b manifest.Document) int { return strings.Compare(a.Kind+a.Name+a.Text, b.Kind+b.Name+b.Text) })
		texts = append(texts, docs.String())
	}
	if len(slices.Compact(texts)) > 1 {
		t.Errorf("%v render different objects", chart.Versions)
	}
	if _, err := c.Run(t.Context(), chart.Versions[0], "template", "ironlb", c.Path(), "--kube-version", "1.31.9"); err == nil || !strings.Contains(err.Error(), "1.32") {
		t.Errorf("for Kubernetes 1.30: %v", err)
	}
}

// TestRefused: each invalid value is refused with a message that names it.
func TestRefused(t *testing.T) {
	c := open(t)
	for _, test := range []struct{ set, want string }{
		{"pool.a=1", "additional properties 'pool' not allowed"},
		{"speaker.config.scheduller=rr", "'/speaker/config': additional properties 'scheduller' not allowed"},
		{"speaker.config.serviceProxy=true", "'/speaker/config': additional properties 'serviceProxy' not allowed"},
		{"dataplane=iptables", "'/dataplane': value must be one of 'auto', 'ipvs', 'nftables'"},
		{"forwarding=nodeport", "'/forwarding': value must be one of 'pod', 'direct'"},
		{"ipMode=proxy", "'/ipMode': value must be one of 'Proxy', 'VIP'"},
		{"serviceProxy=true", "serviceProxy: true needs apiServer.host and apiServer.port"},
		{"serviceProxy=yes", "'/serviceProxy': got string, want boolean"},
		{"apiServer.host=192.0.2.1", "apiServer.host is set and apiServer.port is not"},
		{"apiServer.port=6443", "apiServer.port is set and apiServer.host is not"},
		{"kubeProxyCleanup.image=registry.example/kube-proxy:v1", "kubeProxyCleanup.image needs serviceProxy: true"},
		{"image.registry=ironlb", "'/image/registry': 'ironlb' does not match pattern"},
		{"image.registry=", "'/image/registry': '' does not match pattern"},
		{"ccm.image.digest=sha256:1", "'/ccm/image/digest': 'sha256:1' does not match pattern"},
		{"ccm.replicas=-1", "'/ccm/replicas': minimum: got -1, want 0"},
		{"speaker.stateDir=var", "'/speaker/stateDir': 'var' does not match pattern"},
		{"speaker.metricsBindAddress=0.0.0.0:1", "'/speaker/metricsBindAddress': '0.0.0.0:1' does not match pattern"},
		{"bgpd.metricsBindAddress=127.0.0.1:1", "'/bgpd': additional properties 'metricsBindAddress' not allowed"},
		{"metrics.serviceMonitor.enabled=true", "metrics.serviceMonitor.enabled: true needs metrics.secure: true"},
		{"metrics.secure=true,metrics.tlsSecret=c,metrics.serviceMonitor.enabled=true", "metrics.tlsSecret needs metrics.serviceMonitor.tlsConfig, so that Prometheus"},
		{"metrics.serviceMonitor.interval=soon", "'/metrics/serviceMonitor/interval': 'soon' does not match pattern"},
		{"metrics.readers[0].name=prometheus-k8s", "missing property 'namespace'"},
		{"pools.A.addresses={}", "invalid propertyName 'A'"},
		{"pools.rack.adresses={192.0.2.0/28}", "invalid propertyName 'adresses'"},
	} {
		for _, version := range chart.Versions {
			_, err := c.Template(t.Context(), version, "ironlb", "ironlb-system", "--set", test.set)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s: --set %s: have %v, want %q", version, test.set, err, test.want)
			}
		}
	}
}

// workload is an object with Pods.
type workload struct {
	kind, name string
	labels     map[string]string
	selector   *metav1.LabelSelector
	pod        corev1.PodTemplateSpec
}

func workloads(t *testing.T, docs manifest.Documents) (all []workload) {
	t.Helper()
	decode := func(text string, into any) {
		if err := yaml.UnmarshalStrict([]byte(text), into); err != nil {
			t.Error(err)
		}
	}
	for _, d := range docs {
		switch d.Kind {
		case "Deployment":
			var o appsv1.Deployment
			decode(d.Text, &o)
			all = append(all, workload{d.Kind, d.Name, o.Labels, o.Spec.Selector, o.Spec.Template})
		case "DaemonSet":
			var o appsv1.DaemonSet
			decode(d.Text, &o)
			all = append(all, workload{d.Kind, d.Name, o.Labels, o.Spec.Selector, o.Spec.Template})
		case "Job":
			var o batchv1.Job
			decode(d.Text, &o)
			all = append(all, workload{d.Kind, d.Name, o.Labels, o.Spec.Selector, o.Spec.Template})
		}
	}
	return all
}

// TestMetricsBindAddress: the speaker's probes and the wait of the cleanup use the address that it listens on.
func TestMetricsBindAddress(t *testing.T) {
	c := open(t)
	for address, want := range map[string]struct{ host, port string }{
		"127.0.0.1:7473": {"127.0.0.1", "7473"}, "[::1]:7951": {"::1", "7951"},
	} {
		probed := 0
		for _, w := range workloads(t, template(t, c, "ironlb", "ironlb-system", "--set", "speaker.metricsBindAddress="+address)) {
			for _, container := range slices.Concat(w.pod.Spec.InitContainers, w.pod.Spec.Containers) {
				args := strings.ReplaceAll(strings.Join(container.Args, " "), "=", " ")
				if (container.Name == "ironlb-speaker" || container.Name == "cleanup") && !strings.Contains(args, "--metrics-bind-address "+address) {
					t.Errorf("%s: %s has %q", address, container.Name, args)
				}
				for _, p := range []*corev1.Probe{container.LivenessProbe, container.ReadinessProbe} {
					if container.Name == "ironlb-speaker" && p != nil {
						probed++
						if h := p.HTTPGet; h.Host != want.host || h.Port.String() != want.port {
							t.Errorf("%s: a probe is of %s port %s", address, h.Host, h.Port.String())
						}
					}
				}
			}
		}
		if probed != 2 {
			t.Errorf("%s: %d probes, want 2", address, probed)
		}
	}
}

// TestContainers: every container has a memory limit and no more privileges than it needs.
func TestContainers(t *testing.T) {
	allowed := map[string][]corev1.Capability{
		"ironlb-speaker": {"NET_ADMIN", "NET_RAW", "SYS_NICE"}, "ironlb-bgpd": {"SYS_NICE"}, "cleanup": {"NET_ADMIN"},
		"kube-proxy-cleanup": {"NET_ADMIN", "NET_RAW"},
	}
	found := workloads(t, template(t, open(t), "ironlb", "ironlb-system", all...))
	var names []string
	for _, w := range found {
		pod := w.pod.Spec
		if pod.SecurityContext == nil || pod.SecurityContext.SeccompProfile == nil || pod.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
			t.Errorf("%s %s: the Pod has no seccomp profile RuntimeDefault", w.kind, w.name)
		}
		for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
			names = append(names, c.Name)
			s := c.SecurityContext
			if s == nil || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem {
				t.Errorf("%s %s, container %s: its root file system can be written to", w.kind, w.name, c.Name)
				continue
			}
			if c.Resources.Limits.Memory().IsZero() {
				t.Errorf("%s %s, container %s: no memory limit", w.kind, w.name, c.Name)
			}
			if c.Name == "prepare" {
				continue // loads modules and writes /proc/sys: privileged
			}
			if s.Privileged != nil && *s.Privileged || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation ||
				s.SeccompProfile == nil || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
				t.Errorf("%s %s, container %s: securityContext %+v", w.kind, w.name, c.Name, s)
			}
			if s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || !slices.Equal(s.Capabilities.Add, allowed[c.Name]) {
				t.Errorf("%s %s, container %s: capabilities %+v, want only %v", w.kind, w.name, c.Name, s.Capabilities, allowed[c.Name])
			}
		}
	}
	slices.Sort(names)
	if want := []string{"cleaned", "cleaned", "cleanup", "crds", "ironlb-bgpd", "ironlb-ccm", "ironlb-speaker", "kube-proxy-cleanup", "prepare", "release"}; !slices.Equal(names, want) {
		t.Errorf("containers %q, want %q", names, want)
	}
}

// TestKubeProxyCleanup: kube-proxy's own image removes its rules in the network of every node on which the speaker runs,
// without a token, and touches IPVS only on request.
func TestKubeProxyCleanup(t *testing.T) {
	c := open(t)
	values := "serviceProxy=true,apiServer.host=192.0.2.10,apiServer.port=6443"
	if text := template(t, c, "ironlb", "ironlb-system", "--set", values).String(); strings.Contains(text, "kube-proxy-cleanup") {
		t.Error("by default there is a cleanup")
	}
	for _, ipvs := range []bool{false, true} {
		docs := template(t, c, "ironlb", "ironlb-system", "--set", fmt.Sprintf("%s,kubeProxyCleanup.image=registry.example/kube-proxy:v1,kubeProxyCleanup.ipvs=%t", values, ipvs))
		all := workloads(t, docs)
		speaker := all[slices.IndexFunc(all, func(w workload) bool { return w.name == "ironlb-speaker" })].pod.Spec
		i := slices.IndexFunc(all, func(w workload) bool { return w.name == "ironlb-kube-proxy-cleanup" })
		if i < 0 || all[i].kind != "DaemonSet" {
			t.Fatalf("no DaemonSet in %v", all)
		}
		pod := all[i].pod.Spec
		cleanup := pod.InitContainers[0]
		if cleanup.Image != "registry.example/kube-proxy:v1" || strings.Join(cleanup.Command, " ") != "kube-proxy --cleanup" || !pod.HostNetwork {
			t.Errorf("it runs %q of %s, in the node's network: %t", cleanup.Command, cleanup.Image, pod.HostNetwork)
		}
		if !reflect.DeepEqual(pod.NodeSelector, speaker.NodeSelector) || !reflect.DeepEqual(pod.Tolerations, speaker.Tolerations) || *pod.AutomountServiceAccountToken {
			t.Errorf("it runs on nodes %v with tolerations %v, and a token: %t", pod.NodeSelector, pod.Tolerations, *pod.AutomountServiceAccountToken)
		}
		if modules := slices.ContainsFunc(cleanup.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == "/lib/modules" }); modules != ipvs {
			t.Errorf("ipvs %t: it has the kernel's modules: %t", ipvs, modules)
		}
	}
}

const tokenPath = "/var/run/secrets/kubernetes.io/serviceaccount"

// TestTokens: only the containers that use the Kubernetes API have a token.
func TestTokens(t *testing.T) {
	var have []string
	for _, w := range workloads(t, template(t, open(t), "ironlb", "ironlb-system")) {
		pod := w.pod.Spec
		automount := pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken
		for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
			mounted := slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
				i := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
				token := i >= 0 && pod.Volumes[i].Projected != nil && slices.ContainsFunc(pod.Volumes[i].Projected.Sources,
					func(s corev1.VolumeProjection) bool { return s.ServiceAccountToken != nil })
				if token && m.MountPath != tokenPath {
					t.Errorf("%s: the token is at %s, where no client finds it", c.Name, m.MountPath)
				}
				return token
			})
			if automount || mounted {
				have = append(have, c.Name)
			}
		}
	}
	slices.Sort(have)
	if want := []string{"crds", "ironlb-ccm", "ironlb-speaker", "release"}; !slices.Equal(have, want) {
		t.Errorf("a token have %q, want %q", have, want)
	}
}

// TestLabels: every object has the standard labels, and every selector selects only its own Pods.
func TestLabels(t *testing.T) {
	docs := template(t, open(t), "blue", "lb", all...)
	for _, d := range docs {
		var o metav1.PartialObjectMetadata
		if err := yaml.Unmarshal([]byte(d.Text), &o); err != nil {
			t.Fatal(err)
		}
		for label, want := range map[string]string{
			"app.kubernetes.io/instance": "blue", "app.kubernetes.io/part-of": "ironlb", "app.kubernetes.io/version": "v0.1.0", "app.kubernetes.io/managed-by": "Helm",
		} {
			if o.Labels[label] != want {
				t.Errorf("%s %s: label %s is %q, want %q", d.Kind, d.Name, label, o.Labels[label], want)
			}
		}
		if o.Labels["app.kubernetes.io/name"] == "" {
			t.Errorf("%s %s: no label app.kubernetes.io/name", d.Kind, d.Name)
		}
	}
	names := map[string]string{}
	for _, w := range workloads(t, docs) {
		name := w.pod.Labels["app.kubernetes.io/name"]
		if other := names[name]; other != "" {
			t.Errorf("Pods of %s and %s have the same name label %s", w.name, other, name)
		}
		names[name] = w.name
		if _, ok := w.pod.Labels["app.kubernetes.io/version"]; ok {
			t.Errorf("%s %s: a new chart restarts its Pods, because their template has a version", w.kind, w.name)
		}
		if w.selector != nil {
			for label, want := range w.selector.MatchLabels {
				if w.pod.Labels[label] != want {
					t.Errorf("%s %s: the selector's %s=%s is not on its Pods", w.kind, w.name, label, want)
				}
			}
		}
	}
}

// TestReleases: names follow the release, and two releases share no object.
func TestReleases(t *testing.T) {
	c := open(t)
	seen := map[[3]string]string{}
	for _, r := range []struct{ release, namespace string }{{"ironlb", "ironlb-system"}, {"blue", "lb"}, {"ironlb", "other"}, {"ironlb-2", "ironlb-system"}} {
		docs := template(t, c, r.release, r.namespace)
		for _, d := range docs {
			id := [3]string{d.Kind, d.Namespace, d.Name}
			if other := seen[id]; other != "" {
				t.Errorf("%v is of %s and of %s/%s", id, other, r.namespace, r.release)
			}
			seen[id] = r.namespace + "/" + r.release
		}
		if r.namespace != "ironlb-system" && strings.Contains(docs.String(), "ironlb-system") {
			t.Errorf("release %s in %s names ironlb-system", r.release, r.namespace)
		}
		if r.release == "blue" {
			if unnamed := regexp.MustCompile(`(?m)^  name: ironlb.*|--lease-name=ironlb.*|secretName: ironlb.*`).FindString(docs.String()); unnamed != "" {
				t.Errorf("release blue has %q", unnamed)
			}
		}
	}
	var names []string
	for _, d := range template(t, c, "ironlb", "ironlb-system", "--no-hooks") {
		if d.Namespace == "" {
			names = append(names, d.Kind+" "+d.Name)
		}
	}
	slices.Sort(names)
	want := []string{"ClusterRole ironlb-ccm", "ClusterRole ironlb-speaker", "ClusterRole ironlb-view", "ClusterRoleBinding ironlb-ccm", "ClusterRoleBinding ironlb-ccm:auth-delegator", "ClusterRoleBinding ironlb-speaker",
		"Namespace ironlb-bgp",
		"ValidatingAdmissionPolicy ironlb-speaker-statuses", "ValidatingAdmissionPolicy ironlb-speaker-virtualips",
		"ValidatingAdmissionPolicyBinding ironlb-speaker-statuses", "ValidatingAdmissionPolicyBinding ironlb-speaker-virtualips"}
	if !slices.Equal(names, want) {
		t.Errorf("the default names are %q, want %q", names, want)
	}
}

// TestImages: every image has a registry, and registry, tag and digest are configurable.
func TestImages(t *testing.T) {
	c := open(t)
	digest := "sha256:" + strings.Repeat("0", 64)
	for _, test := range []struct {
		flags []string
		want  []string
	}{
		{nil, []string{"localhost/ironlb/ironlb-bgpd:v0.1.0", "localhost/ironlb/ironlb-ccm:v0.1.0", "localhost/ironlb/ironlb-speaker:v0.1.0"}},
		{[]string{"--set", "image.registry=registry.example:5000/lb,image.tag=v2,bgpd.image.tag=v1,ccm.image.digest=" + digest},
			[]string{"registry.example:5000/lb/ironlb-bgpd:v1", "registry.example:5000/lb/ironlb-ccm@" + digest, "registry.example:5000/lb/ironlb-speaker:v2"}},
	} {
		var have []string
		for _, w := range workloads(t, template(t, c, "ironlb", "ironlb-system", test.flags...)) {
			for _, container := range slices.Concat(w.pod.Spec.InitContainers, w.pod.Spec.Containers) {
				have = append(have, container.Image)
			}
		}
		slices.Sort(have)
		if have = slices.Compact(have); !slices.Equal(have, test.want) {
			t.Errorf("with %q the images are %q, want %q", test.flags, have, test.want)
		}
	}
}

// TestBGPDaemonStays: changed settings of other programs do not restart ironlb-bgpd.
func TestBGPDaemonStays(t *testing.T) {
	c := open(t)
	var before manifest.Document
	for i, flags := range [][]string{nil, {"--set", "bgpd.image.tag=v0.1.0,image.tag=v9,dataplane=nftables,speaker.config.scheduler=wlc,ccm.replicas=3"}} {
		have, err := template(t, c, "ironlb", "ironlb-system", flags...).Find("DaemonSet", "ironlb-bgpd")
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 && have.Text != before.Text {
			t.Errorf("ironlb-bgpd changes:\n%s\n%s", before.Text, have.Text)
		}
		before = have
	}
}

// TestNoKeyWithoutCluster: rendering without a cluster creates no Secret. Its key would differ on each run.
func TestNoKeyWithoutCluster(t *testing.T) {
	if docs := template(t, open(t), "ironlb", "ironlb-system").Only("Secret"); len(docs) > 0 {
		t.Errorf("rendered without a cluster: %s", docs)
	}
}

// TestIgnoreExcludeLB: with one value the speakers and ironlb-ccm serve excluded nodes; without it, neither does.
func TestIgnoreExcludeLB(t *testing.T) {
	c := open(t)
	for flag, want := range map[string]bool{"ignoreExcludeLB=false": false, "ignoreExcludeLB=true": true} {
		docs := template(t, c, "ironlb", "ironlb-system", "--set", flag)
		for _, one := range []struct{ kind, name, text string }{
			{"ConfigMap", "ironlb-speaker", "ignoreExcludeLB: true"}, {"Deployment", "ironlb-ccm", "- --ignore-exclude-lb"},
		} {
			doc, err := docs.Find(one.kind, one.name)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(doc.Text, one.text) != want {
				t.Errorf("with %s %s %s has %q: %v, want %v", flag, one.kind, one.name, one.text, !want, want)
			}
		}
	}
}

// TestExternalIPs: the list of external IPs is in the speakers' configuration and in the flags of ironlb-ccm.
func TestExternalIPs(t *testing.T) {
	c := open(t)
	for flags, want := range map[string]bool{"": false, "externalIPCIDRs={192.0.2.0/24,2001:db8::/64}": true} {
		docs := template(t, c, "ironlb", "ironlb-system", "--set", flags)
		for _, one := range []struct{ kind, name, text string }{
			{"ConfigMap", "ironlb-speaker", "externalIPCIDRs:\n    - 192.0.2.0/24\n    - 2001:db8::/64"},
			{"Deployment", "ironlb-ccm", "- --external-ip-cidrs=192.0.2.0/24,2001:db8::/64"},
		} {
			doc, err := docs.Find(one.kind, one.name)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(doc.Text, one.text) != want {
				t.Errorf("with %q %s %s has %q: %v, want %v", flags, one.kind, one.name, one.text, !want, want)
			}
		}
	}
	if _, err := c.Template(t.Context(), chart.Versions[0], "ironlb", "ironlb-system", "--set", "externalIPCIDRs={192.0.2.1}"); err == nil {
		t.Error("an address without a length is taken")
	}
}

// TestSpeakerToken: the token of the speakers reads no Secret of the namespace that has their key, and none at all
// without BGP. It creates Events, and changes none.
func TestSpeakerToken(t *testing.T) {
	c := open(t)
	for _, test := range []struct {
		release, namespace string
		flags              []string
		want               []string
	}{
		{"ironlb", "ironlb-system", nil, []string{"create events", "list secrets in ironlb-bgp", "watch secrets in ironlb-bgp"}},
		{"blue", "lb", nil, []string{"create events", "list secrets in lb-blue-ironlb-bgp", "watch secrets in lb-blue-ironlb-bgp"}},
		{"ironlb", "ironlb-system", []string{"--set", "bgpd.enabled=false"}, []string{"create events"}},
	} {
		docs := template(t, c, test.release, test.namespace, test.flags...)
		var have []string
		for _, d := range docs.Only("ClusterRole", "Role") {
			var role rbacv1.ClusterRole
			if err := yaml.Unmarshal([]byte(d.Text), &role); err != nil {
				t.Fatal(err)
			}
			if role.Labels["app.kubernetes.io/component"] != "speaker" {
				continue
			}
			for _, rule := range manifest.Rules(role.Rules) {
				if what := rule.Verbs[0] + " " + rule.Resources[0]; rule.Resources[0] == "events" {
					have = append(have, what)
				} else if rule.Resources[0] == "secrets" {
					have = append(have, what+" in "+d.Namespace)
				}
			}
		}
		if slices.Sort(have); !slices.Equal(have, test.want) {
			t.Errorf("%s in %s with %q: the token may %q, want %q", test.release, test.namespace, test.flags, have, test.want)
		}
	}
}

// TestMetrics: by default no metrics leave the loopback interface but those of ironlb-ccm, and nothing is made for
// Prometheus. With the values of metrics one port is that of speaker, probes and monitors.
func TestMetrics(t *testing.T) {
	c := open(t)
	text := template(t, c, "ironlb", "ironlb-system").String()
	for _, none := range []string{"secure-metrics", "HOST_IP", "monitoring.coreos.com", "grafana", "metrics-reader", "kind: Service\n",
		"ironlb-speaker:auth-delegator"} {
		if strings.Contains(text, none) {
			t.Errorf("by default there is %q", none)
		}
	}
	docs := template(t, c, "blue", "lb", "--set", "speaker.metricsBindAddress=127.0.0.1:7473,metrics.secure=true,metrics.serviceMonitor.enabled=true",
		"--set", "metrics.tlsSecret=cert,metrics.serviceMonitor.tlsConfig.serverName=lb,metrics.readers[0].namespace=monitoring,metrics.readers[0].name=prometheus,metrics.serviceMonitor.labels.release=p")
	for _, w := range workloads(t, docs) {
		for _, container := range w.pod.Spec.Containers {
			args := strings.ReplaceAll(strings.Join(container.Args, " "), "=", " ")
			if certificate := strings.Contains(args, "--tls-cert-file /etc/ironlb-metrics/tls.crt --tls-private-key-file /etc/ironlb-metrics/tls.key"); certificate !=
				(container.Name == "ironlb-speaker" || container.Name == "ironlb-ccm") {
				t.Errorf("%s has %s: a certificate: %v", container.Name, args, certificate)
			}
			if container.Name != "ironlb-speaker" {
				continue
			}
			if !strings.Contains(args, "--secure-metrics-bind-address [$(HOST_IP)]:7473 ") || !slices.ContainsFunc(container.Env, func(e corev1.EnvVar) bool {
				return e.Name == "HOST_IP" && e.ValueFrom.FieldRef.FieldPath == "status.hostIP"
			}) {
				t.Errorf("%s has %s, %v", container.Name, args, container.Env)
			}
			if container.LivenessProbe.HTTPGet.Port.String() != "7473" {
				t.Errorf("the probe is of port %v", container.LivenessProbe.HTTPGet.Port)
			}
		}
		if w.name == "blue-ironlb-ccm" || w.name == "blue-ironlb-speaker" {
			i := slices.IndexFunc(w.pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == "certificate" })
			if i < 0 || w.pod.Spec.Volumes[i].Secret.SecretName != "cert" || !*w.pod.Spec.Volumes[i].Secret.Optional { // it starts without
				t.Errorf("%s has volumes %v", w.name, w.pod.Spec.Volumes)
			}
		}
	}
	endpoints, err := chart.Endpoints(docs)
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, e := range endpoints {
		have = append(have, fmt.Sprintf("%s %s:%d%s", e.Job(), e.Scheme, e.Number, e.Path))
		if e.TLSConfig.InsecureSkipVerify || e.TLSConfig.ServerName != "lb" || e.BearerTokenFile == "" || e.Service.Spec.ClusterIP != "None" || e.Service.Namespace != "lb" {
			t.Errorf("%s has %+v", e.Job(), e)
		}
	}
	if want := []string{"ironlb-ccm https:10258/metrics", "ironlb-speaker https:7473/metrics", "ironlb-bgpd https:7473/metrics/bgpd"}; !slices.Equal(have, want) {
		t.Errorf("the endpoints are %q, want %q", have, want)
	}
	for _, d := range docs.Only("ServiceMonitor") {
		if !strings.Contains(d.Text, "\n    release: p\n") {
			t.Errorf("%s lacks the label of the values:\n%s", d.Name, d.Text)
		}
	}
	binding, err := docs.Find("ClusterRoleBinding", "lb-blue-ironlb-metrics-reader")
	if err != nil || !strings.Contains(binding.Text, "name: prometheus\n    namespace: monitoring") {
		t.Errorf("readers are bound by %s (%v)", binding.Text, err)
	}
	endpoints, err = chart.Endpoints(template(t, c, "ironlb", "ironlb-system",
		"--set", "metrics.secure=true,metrics.serviceMonitor.enabled=true,bgpd.enabled=false",
		"--set", "metrics.serviceMonitor.tokenSecret=reader,metrics.serviceMonitor.interval=30s"))
	if err != nil || len(endpoints) != 2 {
		t.Fatalf("without ironlb-bgpd: %v, %v", endpoints, err)
	}
	for _, e := range endpoints {
		if !e.TLSConfig.InsecureSkipVerify || e.Authorization == nil || e.Authorization.Credentials.Name != "reader" ||
			e.Authorization.Credentials.Key != "token" || e.BearerTokenFile != "" || e.Interval != "30s" {
			t.Errorf("%s has %+v", e.Job(), e)
		}
	}
}

// TestMonitoringFiles: the PrometheusRule has the rules of the file that promtool tests, and the ConfigMap the dashboard.
func TestMonitoringFiles(t *testing.T) {
	docs := template(t, open(t), "ironlb", "ironlb-system",
		"--set", "metrics.prometheusRule.enabled=true,metrics.prometheusRule.labels.release=p,metrics.dashboard.enabled=true")
	doc, err := docs.Find("PrometheusRule", "ironlb")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(alertsFile)
	if err != nil {
		t.Fatal(err)
	}
	var object struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
		Spec     any               `json:"spec"`
	}
	var want any
	if err := errors.Join(yaml.Unmarshal([]byte(doc.Text), &object), yaml.Unmarshal(text, &want)); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(object.Spec, want) || object.Metadata.Labels["release"] != "p" {
		t.Errorf("the PrometheusRule is\n%s", doc.Text)
	}
	if doc, err = docs.Find("ConfigMap", "ironlb-dashboard"); err != nil {
		t.Fatal(err)
	}
	var config corev1.ConfigMap
	if err := yaml.UnmarshalStrict([]byte(doc.Text), &config); err != nil {
		t.Fatal(err)
	}
	if text, err = os.ReadFile(dashboardFile); err != nil {
		t.Fatal(err)
	}
	if strings.TrimSpace(config.Data["ironlb.json"]) != strings.TrimSpace(string(text)) || config.Labels["grafana_dashboard"] != "1" {
		t.Errorf("the ConfigMap is\n%s", doc.Text)
	}
}
