package installed

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// TestLivenessClass: each SpeakerStatus reports the kernel's scheduling class of a thread of the speaker in its Pod,
// and the reason if it is not Deadline.
func TestLivenessClass(t *testing.T) {
	cluster.Need(t)
	cluster.Await(t, time.Minute, "SpeakerStatuses to report what the kernel does", func(ctx context.Context) error {
		var all v1alpha1.SpeakerStatusList
		if err := cluster.Objects.List(ctx, &all); err != nil {
			return err
		}
		if len(all.Items) != len(cluster.Nodes) {
			return fmt.Errorf("there are %d", len(all.Items))
		}
		for _, s := range all.Items {
			liveness := s.Status.Liveness
			if liveness == nil {
				return fmt.Errorf("%s does not report it", s.Name)
			}
			if liveness.SchedulingClass != v1alpha1.SchedulingDeadline && liveness.Message == "" {
				return fmt.Errorf("%s does not report why it is %s", s.Name, liveness.SchedulingClass)
			}
			// Nodes of the lab see each other's processes; the speaker's Pod is in the node's own network namespace.
			threads, err := cluster.NodeByName(s.Name).Kubelet().Exec(ctx, "sh", "-c", `for p in $(pgrep -x ironlb-speaker); do
				if [ "$(readlink /proc/$p/ns/net)" = "$(readlink /proc/self/ns/net)" ]; then ps -L -o cls=,ni= -p $p; fi
			done`)
			if err != nil {
				return err
			}
			if has := bestClass(threads); has != liveness.SchedulingClass {
				return fmt.Errorf("%s reports %s, the speaker has %q", s.Name, liveness.SchedulingClass, has)
			}
		}
		return nil
	})
}

// TestSpeakerStatusReturns: a deleted SpeakerStatus is written again within seconds, and its Node owns it.
func TestSpeakerStatusReturns(t *testing.T) {
	cluster.Need(t)
	name := cluster.Nodes[0].Name
	deleted := &v1alpha1.SpeakerStatus{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := cluster.Objects.Delete(t.Context(), deleted); err != nil {
		t.Fatal(err)
	}
	cluster.Await(t, 10*time.Second, "the SpeakerStatus to be written again", func(ctx context.Context) error {
		var s v1alpha1.SpeakerStatus
		if err := cluster.Objects.Get(ctx, types.NamespacedName{Name: name}, &s); err != nil {
			return err
		}
		if s.Status.Liveness == nil || len(s.OwnerReferences) != 1 || s.OwnerReferences[0].Name != name {
			return fmt.Errorf("it is %+v", s)
		}
		return nil
	})
}

// bestClass returns the best scheduling class of threads, which ps lists with class and nice value.
func bestClass(threads string) (best v1alpha1.SchedulingClass) {
	for line := range strings.Lines(threads) {
		f := strings.Fields(line)
		switch {
		case len(f) != 2:
		case f[0] == "DLN":
			return v1alpha1.SchedulingDeadline
		case f[1] == "-20":
			best = v1alpha1.SchedulingNice
		case best == "":
			best = v1alpha1.SchedulingNormal
		}
	}
	return best
}
