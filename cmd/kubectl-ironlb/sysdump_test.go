package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/websocket"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// fakePods have logs, and run ironlb-speaker dump, except for the speaker of node b.
type fakePods struct{}

func (fakePods) Logs(_ context.Context, pod string, o *corev1.PodLogOptions) ([]byte, error) {
	return fmt.Appendf(nil, "%s %s %t %d\n", pod, o.Container, o.Previous, ptr.Deref(o.SinceSeconds, 0)), nil
}

func (fakePods) Exec(ctx context.Context, pod, container string, argv ...string) ([]byte, error) {
	switch pod {
	case "ironlb-speaker-b":
		return []byte(`{"errors": ["x"]}`), errors.New("command terminated with exit code 1")
	case "ironlb-speaker-c":
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return fmt.Appendf(nil, "%s: %s\n", container, strings.Join(argv, " ")), nil
}

func ourPod(name, program, node string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: name, Labels: map[string]string{
		nameLabel: program, "app.kubernetes.io/part-of": "ironlb",
	}}}
	p.Spec.NodeName = node
	p.Spec.Containers = []corev1.Container{{Name: program, Env: []corev1.EnvVar{{Name: "TOKEN", Value: "s3cret"}}}}
	p.Status.Phase = corev1.PodRunning
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: program, ContainerID: "containerd://1"}}
	return p
}

// dumped returns a tool with a cluster that has secrets in each place that sysdump must leave out.
func dumped(out io.Writer) *tool {
	secret := map[string]string{corev1.LastAppliedConfigAnnotation: "s3cret"}
	ccm, crashed := ourPod("ironlb-ccm-1", "ironlb-ccm", "a"), ourPod("ironlb-speaker-a", "ironlb-speaker", "a")
	crashed.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 1}
	crashed.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "prepare", ContainerID: "containerd://2"}, {Name: "waiting"}}
	event := func(namespace, name, kind, component string) *corev1.Event {
		return &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			InvolvedObject: corev1.ObjectReference{Kind: kind, Namespace: namespace}, Source: corev1.EventSource{Component: component}}
	}
	ours := metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: "ironlb-speaker", Labels: ccm.Labels, Annotations: secret}
	return &tool{out: out, now: func() time.Time { return now }, system: v1alpha1.Namespace, pods: fakePods{}, client: cluster(
		ccm, crashed, ourPod("ironlb-speaker-b", "ironlb-speaker", "b"),
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: "foreign"}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: "keys"}, Data: map[string][]byte{"keys": []byte("s3cret")}},
		&corev1.ConfigMap{ObjectMeta: ours, Data: map[string]string{"speaker.yaml": "serviceProxy: false"}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: "foreign"}, Data: map[string]string{"x": "s3cret"}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-proxy"}, Data: map[string]string{
			"a.yaml": "kind: KubeProxyConfiguration\nmode: nftables", "kubeconfig.conf": "kind: Config\ntoken: s3cret", "notes": "s3cret: ["}},
		&appsv1.DaemonSet{ObjectMeta: ours, Spec: appsv1.DaemonSetSpec{Template: corev1.PodTemplateSpec{Spec: ccm.Spec}}},
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Annotations: secret}},
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "web"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: map[string]string{"team": "x"}, Annotations: map[string]string{"a": "s3cret"}}},
		&v1alpha1.IPAddressPool{ObjectMeta: metav1.ObjectMeta{Name: "lan", Annotations: secret}},
		event("default", "of-service", "Service", "x"), event("default", "of-speaker", "Pod", "ironlb-speaker"), event("default", "foreign", "Pod", "kubelet"),
	)}
}

// files returns the content of an archive by path, without its folder, and the paths in their order.
func files(t *testing.T, name string) (map[string]string, []string) {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	content, paths := map[string]string{}, []string(nil)
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return content, paths
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		path, inside := strings.CutPrefix(h.Name, "ironlb-sysdump-20260102-030405/")
		if err != nil || !inside {
			t.Fatalf("%s: %v", h.Name, err)
		}
		content[path] = string(data)
		paths = append(paths, path)
	}
}

// The archive has each part once and no secret. A part that fails is listed, and the same cluster gives the same bytes.
func TestSysdump(t *testing.T) {
	var out bytes.Buffer
	tool := dumped(&out)
	dir := t.TempDir()
	o := sysdumpOptions{file: filepath.Join(dir, "a.tar.gz"), nodeLimit: time.Minute}
	if err := tool.sysdump(t.Context(), o); !errors.Is(err, errUnread) {
		t.Fatal(err)
	}
	content, paths := files(t, o.file)
	expect(t, "the paths", strings.Join(paths, "\n"), `
version.txt
objects/bfdprofiles.yaml
objects/bgpadvertisements.yaml
objects/bgppeers.yaml
objects/communities.yaml
objects/configmaps.yaml
objects/daemonsets.yaml
objects/deployments.yaml
objects/endpointslices.yaml
objects/events.yaml
objects/ipaddresspools.yaml
objects/kube-proxy.yaml
objects/l2advertisements.yaml
objects/leases.yaml
objects/namespaces.yaml
objects/nodes.yaml
objects/pods.yaml
objects/services.yaml
objects/speakerstatuses.yaml
objects/virtualips.yaml
logs/ironlb-ccm-1/ironlb-ccm.log
logs/ironlb-speaker-a/prepare.log
logs/ironlb-speaker-a/ironlb-speaker.log
logs/ironlb-speaker-a/ironlb-speaker.previous.log
logs/ironlb-speaker-b/ironlb-speaker.log
nodes/a/ironlb-speaker-a.json
nodes/b/ironlb-speaker-b.json
ERRORS.txt
`)
	for path, text := range content {
		if strings.Contains(text, "s3cret") || strings.Contains(text, "kind: Secret") {
			t.Errorf("%s has a secret:\n%s", path, text)
		}
	}
	for path, want := range map[string][]string{
		"objects/services.yaml":                             {"kind: ServiceList", "namespace: default", "name: web"},
		"objects/namespaces.yaml":                           {"team: x"},
		"objects/configmaps.yaml":                           {"serviceProxy: false"},
		"objects/kube-proxy.yaml":                           {"mode: nftables"},
		"objects/daemonsets.yaml":                           {"name: TOKEN", "value: REDACTED"},
		"objects/pods.yaml":                                 {"name: ironlb-ccm-1", "value: REDACTED"},
		"objects/events.yaml":                               {"name: of-service", "name: of-speaker"},
		"logs/ironlb-speaker-a/ironlb-speaker.previous.log": {"ironlb-speaker-a ironlb-speaker true 0"},
		"nodes/a/ironlb-speaker-a.json":                     {"ironlb-speaker: ironlb-speaker dump --node"},
		"nodes/b/ironlb-speaker-b.json":                     {"errors"}, // what the command has printed nevertheless
		"ERRORS.txt":                                        {"nodes/b/ironlb-speaker-b.json: ironlb-speaker dump in Pod ironlb-speaker-b (Running): command"},
	} {
		for _, text := range want {
			if !strings.Contains(content[path], text) {
				t.Errorf("%s lacks %q:\n%s", path, text, content[path])
			}
		}
		if strings.Contains(content[path], "name: foreign") {
			t.Errorf("%s has another program's object:\n%s", path, content[path])
		}
	}
	if strings.Index(content["objects/services.yaml"], "namespace: a") > strings.Index(content["objects/services.yaml"], "namespace: default") {
		t.Errorf("not sorted:\n%s", content["objects/services.yaml"])
	}
	if text := out.String(); strings.Count(text, "ok      ") != 25 || strings.Count(text, "failed  ") != 1 || !strings.Contains(text, "a.tar.gz has 28 files") {
		t.Errorf("the output:\n%s", text)
	}
	if info, err := os.Stat(o.file); err != nil || info.Mode() != 0o600 {
		t.Errorf("the file has mode %v, %v", info.Mode(), err)
	}
	if err := tool.sysdump(t.Context(), o); err == nil || !strings.Contains(err.Error(), "name another file with -o") {
		t.Errorf("to an existing file: %v", err)
	}
	first, err := os.ReadFile(o.file)
	if err != nil {
		t.Fatal(err)
	}
	o.file = filepath.Join(dir, "b.tar.gz")
	if err := tool.sysdump(t.Context(), o); !errors.Is(err, errUnread) {
		t.Fatal(err)
	}
	if second, err := os.ReadFile(o.file); err != nil || !bytes.Equal(first, second) {
		t.Errorf("the same cluster gives another archive: %v", err)
	}
}

// Fields that are only for "kubectl apply" are left out, other annotations are not.
func TestMarshal(t *testing.T) {
	list := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "v1", "kind": "ServiceList"}, Items: []unstructured.Unstructured{
		{Object: map[string]any{"kind": "Service", "metadata": map[string]any{"name": "web", "managedFields": []any{"x"},
			"annotations": map[string]any{corev1.LastAppliedConfigAnnotation: "x", "ironlb.io/ip-pool": "lan"}}}},
	}}
	text, err := marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, "the file", string(text), `
apiVersion: v1
items:
- kind: Service
  metadata:
    annotations:
      ironlb.io/ip-pool: lan
    name: web
kind: ServiceList
`)
}

// --nodes and --since limit the logs and the states. Without a failed part there is no ERRORS.txt. Without the right to
// list Pods, the other objects are collected.
func TestSysdumpOfNodes(t *testing.T) {
	tool := dumped(io.Discard)
	o := sysdumpOptions{file: filepath.Join(t.TempDir(), "a.tar.gz"), nodes: []string{"a"}, since: time.Hour, nodeLimit: time.Minute}
	if err := tool.sysdump(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	content, paths := files(t, o.file)
	if slices.ContainsFunc(paths, func(p string) bool { return strings.Contains(p, "speaker-b") || p == "ERRORS.txt" }) {
		t.Errorf("files %q", paths)
	}
	if got := content["logs/ironlb-ccm-1/ironlb-ccm.log"]; got != "ironlb-ccm-1 ironlb-ccm false 3600\n" {
		t.Errorf("the log of ironlb-ccm: %q", got)
	}
	o.file = o.file + "2"
	allowed := tool.client
	tool.client = interceptor.NewClient(allowed.(client.WithWatch), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if list.GetObjectKind().GroupVersionKind().Kind == "PodList" || reflect.TypeOf(list) == reflect.TypeFor[*corev1.PodList]() {
				return apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("no right"))
			}
			return c.List(ctx, list, opts...)
		},
	})
	if err := tool.sysdump(t.Context(), o); !errors.Is(err, errUnread) {
		t.Errorf("without the right to list Pods: %v", err)
	}
	content, _ = files(t, o.file)
	if text := content["ERRORS.txt"]; !strings.Contains(text, "logs and nodes: listing the Pods") ||
		!strings.Contains(text, "objects/pods.yaml: ") || content["objects/services.yaml"] == "" {
		t.Errorf("without the right to list Pods:\n%s", text)
	}
	tool.client = allowed
	o.file, o.nodes = o.file+"3", []string{"a", "typo"}
	if err := tool.sysdump(t.Context(), o); err == nil || !strings.Contains(err.Error(), "node typo has no Pod of IronLB: correct --nodes") {
		t.Errorf("%v", err)
	}
	tool.system = "elsewhere"
	if err := tool.sysdump(t.Context(), o); err == nil || !strings.Contains(err.Error(), "--ironlb-namespace") {
		t.Errorf("%v", err)
	}
}

// A node that does not answer delays the archive for the time limit only. Ctrl-C leaves no file.
func TestSysdumpEnds(t *testing.T) {
	tool := dumped(io.Discard)
	if err := tool.client.Create(t.Context(), ourPod("ironlb-speaker-c", "ironlb-speaker", "c")); err != nil {
		t.Fatal(err)
	}
	o := sysdumpOptions{file: filepath.Join(t.TempDir(), "a.tar.gz"), nodes: []string{"c"}, nodeLimit: time.Millisecond}
	if err := tool.sysdump(t.Context(), o); !errors.Is(err, errUnread) {
		t.Fatal(err)
	}
	if content, _ := files(t, o.file); !strings.Contains(content["ERRORS.txt"], "nodes/c/ironlb-speaker-c.json: no answer within 1ms") {
		t.Errorf("errors:\n%s", content["ERRORS.txt"])
	}
	ctx, cancel := context.WithCancel(t.Context())
	tool.pods = canceling{fakePods{}, cancel}
	o.file, o.nodeLimit = o.file+"2", time.Hour
	if err := tool.sysdump(ctx, o); !errors.Is(err, context.Canceled) {
		t.Errorf("after Ctrl-C: %v", err)
	}
	if _, err := os.Stat(o.file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after Ctrl-C the file is there: %v", err)
	}
}

// canceling is interrupted while it runs a command.
type canceling struct {
	fakePods
	cancel func()
}

func (c canceling) Exec(ctx context.Context, pod, container string, argv ...string) ([]byte, error) {
	c.cancel()
	return c.fakePods.Exec(ctx, pod, container, argv...)
}

// longLog is the number of lines of a log that is longer than sysdump keeps: 1,000 bytes each.
const longLog = 3 * logOctets / 1000

// TestPods: logs and commands as an API server gets them. Of a long log the end is kept, and the output of a command also
// when it fails.
func TestPods(t *testing.T) {
	const pod = "/api/v1/namespaces/ironlb-system/pods/p"
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+pod+"/log", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("container") != "long" {
			fmt.Fprint(w, r.URL.RawQuery)
			return
		}
		limit, err := strconv.Atoi(r.URL.Query().Get("limitBytes"))
		if err != nil {
			limit = math.MaxInt
		}
		for i, written := 0, 0; i < longLog && written < limit; i++ {
			n, _ := fmt.Fprintf(w, "line %d %01000d\n", i, i) // a failure is one of the client
			written += n
		}
	})
	mux.Handle("GET "+pod+"/exec", websocket.Server{
		Handshake: func(c *websocket.Config, _ *http.Request) error {
			c.Protocol = []string{"v5.channel.k8s.io"}
			return nil
		},
		Handler: func(c *websocket.Conn) {
			c.PayloadType = websocket.BinaryFrame
			status := `{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"1"}]}}`
			for channel, text := range []string{1: strings.Join(c.Request().URL.Query()["command"], " "), 2: "why\n", 3: status} {
				if channel == 0 {
					continue // standard input
				}
				if _, err := c.Write(append([]byte{byte(channel)}, text...)); err != nil {
					t.Error(err)
				}
			}
			if err := c.WriteClose(1000); err != nil { // normal closure (RFC 6455, 7.4.1)
				t.Error(err)
			}
			_, _ = io.Copy(io.Discard, c) // until the client has closed
		},
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	flags := genericclioptions.NewConfigFlags(false)
	flags.APIServer = ptr.To(server.URL)
	pods, err := connectPods(flags, v1alpha1.Namespace)
	if err != nil {
		t.Fatal(err)
	}
	if log, err := pods.Logs(t.Context(), "p", &corev1.PodLogOptions{Container: "c", Previous: true}); err != nil || string(log) != "container=c&previous=true" {
		t.Errorf("log %q, %v", log, err)
	}
	log, err := (&tool{pods: pods}).logPart("p", "long", false, 0).get(t.Context())
	if last := fmt.Sprintf("line %d ", longLog-1); err != nil || len(log) > logOctets || len(log) < logOctets-2000 || !bytes.HasPrefix(log, []byte("line ")) ||
		!bytes.Contains(log[len(log)-1100:], []byte(last)) {
		t.Errorf("of a long log there are %d bytes, from %.20q to %.20q, %v", len(log), log, log[max(0, len(log)-1100):], err)
	}
	out, err := pods.Exec(t.Context(), "p", "c", "ironlb-speaker", "dump")
	if string(out) != "ironlb-speaker dump" || err == nil || !strings.Contains(err.Error(), "exit code 1: why") {
		t.Errorf("output %q, %v", out, err)
	}
}
