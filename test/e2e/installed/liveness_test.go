package installed

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// TestLivenessClass: each SpeakerStatus names the scheduling class that the kernel has given to a thread of the speaker in its Pod, and says why
// it is not Deadline.
func TestLivenessClass(t *testing.T) {
	cluster.Need(t)
	eventually(t, time.Minute, "SpeakerStatuses to say what the kernel does", func(ctx context.Context) error {
		var all v1alpha1.SpeakerStatusList
		if err := cluster.Objects.List(ctx, &all); err != nil {
			return err
		}
		said := map[v1alpha1.SchedulingClass]int{}
		for _, s := range all.Items {
			liveness := s.Status.Liveness
			if liveness == nil {
				return fmt.Errorf("%s says nothing of it", s.Name)
			}
			if liveness.SchedulingClass != v1alpha1.SchedulingDeadline && liveness.Message == "" {
				return fmt.Errorf("%s does not say why it is %s", s.Name, liveness.SchedulingClass)
			}
			said[liveness.SchedulingClass]++
		}
		// Nodes of the lab see each other's processes.
		out, err := cluster.Nodes[0].Kubelet().Exec(ctx, "ps", "-eLo", "pid=,comm=,cls=,ni=")
		if err != nil {
			return err
		}
		if has := speakersByClass(out); !maps.Equal(said, has) || len(all.Items) != len(cluster.Nodes) {
			return fmt.Errorf("%d SpeakerStatuses say %v, the speakers have %v", len(all.Items), said, has)
		}
		return nil
	})
}

// speakersByClass counts speakers by the best scheduling class of their threads, which ps lists with process, name, class and nice value.
func speakersByClass(threads string) map[v1alpha1.SchedulingClass]int {
	best := map[string]v1alpha1.SchedulingClass{}
	for line := range strings.Lines(threads) {
		f := strings.Fields(line)
		if len(f) != 4 || f[1] != "ironlb-speaker" {
			continue
		}
		switch have := best[f[0]]; {
		case f[2] == "DLN":
			best[f[0]] = v1alpha1.SchedulingDeadline
		case f[3] == "-20" && have != v1alpha1.SchedulingDeadline:
			best[f[0]] = v1alpha1.SchedulingNice
		case have == "":
			best[f[0]] = v1alpha1.SchedulingNormal
		}
	}
	count := map[v1alpha1.SchedulingClass]int{}
	for _, class := range best {
		count[class]++
	}
	return count
}
