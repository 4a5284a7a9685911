package bgp

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/speaker/view"
	"github.com/ironlb/ironlb/test/lab"
)

// put writes an object of IronLB's kinds: key is its kind and name. Unknown fields are refused.
func put(ctx context.Context, key, spec string) error {
	o := object(key)
	if err := yaml.UnmarshalStrict([]byte("spec: "+spec), &o.Object); err != nil {
		return fmt.Errorf("read the spec of %s: %w", key, err)
	}
	if err := cluster.Objects.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), client.FieldOwner("test"), client.ForceOwnership); err != nil {
		return fmt.Errorf("apply %s: %w", key, err)
	}
	return nil
}

// object returns an object of IronLB's kinds without its content.
func object(key string) *unstructured.Unstructured {
	kind, name, _ := strings.Cut(key, "/")
	o := &unstructured.Unstructured{Object: map[string]any{}}
	o.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
	o.SetName(name)
	return o
}

// apply writes an object until the end of the test. Then an object of base is restored, and any other is deleted.
func apply(t *testing.T, key, spec string) {
	t.Helper()
	if err := put(t.Context(), key, spec); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if was, there := base[key]; there {
			if err := put(ctx, key, was); err != nil {
				t.Error(err)
			}
			return
		}
		remove(t, key)
	})
}

// remove deletes an object of IronLB's kinds; it may be absent.
func remove(t *testing.T, key string) {
	t.Helper()
	if err := cluster.Objects.Delete(context.WithoutCancel(t.Context()), object(key)); client.IgnoreNotFound(err) != nil {
		t.Errorf("delete %s: %v", key, err)
	}
}

// end deletes a Service or a Pod, and waits until it is gone; it may be absent.
func end(t *testing.T, key string) {
	t.Helper()
	if _, err := cluster.Kubectl(context.WithoutCancel(t.Context()), "delete", key, "--ignore-not-found", "--timeout=60s"); err != nil {
		t.Error(err)
	}
}

// serve creates a Service until the end of the test.
func serve(t *testing.T, name, manifest string) {
	t.Helper()
	if err := cluster.ApplyYAML(t.Context(), manifest); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end(t, "service/"+name) })
}

// pod runs a Pod of an app until the end of the test.
func pod(t *testing.T, name, app string, n *lab.Node) {
	t.Helper()
	if _, err := cluster.AddPod(t.Context(), lab.PodSpec{Name: name, Node: n, Labels: map[string]string{"app": app}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end(t, "pod/"+name) })
}

// password writes the named Secret until the end of the test.
func password(t *testing.T, name, text string) {
	t.Helper()
	secrets := cluster.Kube.CoreV1().Secrets(v1alpha1.PasswordNamespace)
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Type: corev1.SecretTypeBasicAuth, StringData: map[string]string{"username": "", "password": text}}
	_, err := secrets.Update(t.Context(), s, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = secrets.Create(t.Context(), s, metav1.CreateOptions{})
		t.Cleanup(func() {
			if err := secrets.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// reported waits until the speaker of every node reports the wanted state of its session with the peer.
func reported(t *testing.T, peer, what string, check func(v1alpha1.SessionStatus) bool) {
	t.Helper()
	for _, n := range cluster.Nodes {
		reports(t, n, peer, what, check)
	}
}

// reports waits until the speaker of one node reports the wanted state of its session with the peer.
func reports(t *testing.T, n *lab.Node, peer, what string, check func(v1alpha1.SessionStatus) bool) {
	t.Helper()
	cluster.Await(t, patience, fmt.Sprintf("SpeakerStatus of %s, peer %s: %s", n.Name, peer, what), func(ctx context.Context) error {
		var s v1alpha1.SpeakerStatus
		if err := cluster.Objects.Get(ctx, client.ObjectKey{Name: n.Name}, &s); err != nil {
			return err
		}
		if s.Status.BGP == nil {
			return errors.New("it has no BGP status")
		}
		for _, session := range s.Status.BGP.Sessions {
			if session.Peer == peer && check(session) {
				return nil
			}
		}
		return fmt.Errorf("got %+v", s.Status.BGP.Sessions)
	})
}

// wrong waits until all reports of a peer show that it has no session for this reason: the SpeakerStatuses, the
// BGPPeer's condition, and an Event. It returns the message of the Event.
func wrong(t *testing.T, peer string, reason view.Reason) (message string) {
	t.Helper()
	reported(t, peer, string(reason), func(s v1alpha1.SessionStatus) bool {
		return s.State != v1alpha1.SessionEstablished && s.Reason == string(reason) && s.Message != ""
	})
	condition(t, peer, metav1.ConditionFalse, string(reason), "0/3")
	cluster.Await(t, patience, fmt.Sprintf("an Event about %s: %s", peer, reason), func(ctx context.Context) error {
		var p v1alpha1.BGPPeer
		if err := cluster.Objects.Get(ctx, client.ObjectKey{Name: peer}, &p); err != nil {
			return err
		}
		events, err := cluster.Kube.CoreV1().Events("").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(p.UID)})
		if err != nil {
			return err
		}
		var have []string
		for _, e := range events.Items {
			if e.Reason == string(reason) && e.Type == corev1.EventTypeWarning {
				message = e.Message
				return nil
			}
			have = append(have, e.Reason+": "+e.Message)
		}
		return fmt.Errorf("there are %q", have)
	})
	return message
}

// condition waits until a BGPPeer's condition Established has this status.
func condition(t *testing.T, peer string, status metav1.ConditionStatus, reason, sessions string) {
	t.Helper()
	cluster.Await(t, patience, fmt.Sprintf("BGPPeer %s is Established: %s (%s)", peer, status, reason), func(ctx context.Context) error {
		var p v1alpha1.BGPPeer
		if err := cluster.Objects.Get(ctx, client.ObjectKey{Name: peer}, &p); err != nil {
			return err
		}
		c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionEstablished)
		if c == nil || c.Status != status || c.Reason != reason || p.Status.Sessions != sessions {
			return fmt.Errorf("its status is %+v", p.Status)
		}
		return nil
	})
}
