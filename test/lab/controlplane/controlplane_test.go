package controlplane

import (
	"context"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/ironlb/ironlb/test/eventually"
	"github.com/ironlb/ironlb/test/lab/tools"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		fmt.Println("left out: needs root")
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// start starts a control plane in a namespace of its own.
func start(t *testing.T) (*ControlPlane, string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root: run the tests as root, or with -short")
	}
	ctx := t.Context()
	build, err := tools.New(ctx, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	if err := build.Pinned(ctx, tools.ControlPlane...); err != nil {
		t.Fatal(err)
	}
	ns := fmt.Sprintf("ilb%d-cp", os.Getpid())
	sh(t, "ip netns add "+ns)
	t.Cleanup(func() { sh(t, "ip netns del "+ns) })
	sh(t, "ip -n "+ns+" link set lo up && ip -n "+ns+" addr add 198.51.100.1/32 dev lo")

	began := time.Now()
	cp, err := Start(ctx, Config{
		Namespace: ns,
		Address:   netip.MustParseAddr("198.51.100.1"),
		Dir:       t.TempDir(),
		Program:   build.Path,
		Services:  []netip.Prefix{netip.MustParsePrefix("203.0.113.0/25")},
		Nodes:     []string{"node1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("ready after %s", time.Since(began).Round(time.Millisecond))
	t.Cleanup(func() {
		if err := cp.Close(); err != nil {
			t.Error(err)
		}
		if left, _ := exec.Command("ip", "netns", "pids", ns).Output(); len(left) > 0 {
			t.Errorf("processes left in %s: %s", ns, left)
		}
	})
	return cp, ns
}

func sh(t *testing.T, script string) {
	t.Helper()
	if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
		t.Errorf("%s: %v: %s", script, err, out)
	}
}

// waitControllers waits until the controllers run: until there is a ServiceAccount that one of them creates.
func waitControllers(t *testing.T, cp *ControlPlane) {
	t.Helper()
	eventually.Nil(t, time.Minute, "the controllers create ServiceAccount default/default", func(ctx context.Context) error {
		_, err := cp.client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

func TestControlPlane(t *testing.T) {
	cp, ns := start(t)
	ctx := t.Context()

	t.Run("a ServiceAccount acts as itself and may do nothing unasked", func(t *testing.T) {
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "who"}}
		if _, err := cp.client.CoreV1().ServiceAccounts("default").Create(ctx, account, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		file, err := cp.ServiceAccountKubeconfig(ctx, "default", "who")
		if err != nil {
			t.Fatal(err)
		}
		config, err := clientcmd.BuildConfigFromFlags("", file)
		if err != nil {
			t.Fatal(err)
		}
		config.Dial = Dialer(ns)
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		review, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got := review.Status.UserInfo.Username; got != "system:serviceaccount:default:who" {
			t.Errorf("the account is taken for %q", got)
		}
		if _, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("list of nodes without a permission: %v, want forbidden", err)
		}
	})

	t.Run("the API server can go and come", func(t *testing.T) {
		// kube-controller-manager exits if it finds no API server within 10 seconds of its start.
		waitControllers(t, cp)
		if err := cp.StopAPIServer(); err != nil {
			t.Fatal(err)
		}
		if _, err := cp.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{}); err == nil {
			t.Error("a stopped API server answered")
		}
		if err := cp.StartAPIServer(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := cp.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{}); err != nil {
			t.Error(err)
		}
	})

	t.Run("a component that dies is reported with its log", func(t *testing.T) {
		if err := exec.Command("kill", "-KILL", fmt.Sprint(cp.controllers.Pid())).Run(); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-cp.Failed():
			if !strings.Contains(err.Error(), "kube-controller-manager ended by itself") {
				t.Errorf("failure reported as %v", err)
			}
		case <-time.After(10 * time.Second):
			t.Error("a killed controller manager was not noticed")
		}
	})
}

// A second API server cannot bind the first one's port, and the error names the cause.
func TestPortTaken(t *testing.T) {
	cp, ns := start(t)
	cfg := cp.cfg
	cfg.Dir = t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	second, err := Start(ctx, cfg)
	if err == nil {
		second.Close()
		t.Fatal("two control planes in one namespace")
	}
	if !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("start in %s alongside another: %v", ns, err)
	}
}
