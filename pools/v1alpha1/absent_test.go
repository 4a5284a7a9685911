package v1alpha1

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// reported are speakers written as "a: b -c": a receives b, and has lost c. "a!: b" has stopped.
func reported(text string) (speakers []SpeakerStatus) {
	for _, one := range strings.Split(text, ",") {
		name, members, _ := strings.Cut(strings.TrimSpace(one), ":")
		var s SpeakerStatus
		if name, stopped := strings.CutSuffix(name, "!"); stopped {
			s.Name, s.Status.Stopped = name, &metav1.Time{Time: time.Unix(0, 0)}
		} else {
			s.Name = name
		}
		for _, m := range strings.Fields(members) {
			state := MemberObserver // is received
			m, lost := strings.CutPrefix(m, "-")
			if lost {
				state = MemberSilent
			}
			s.Status.Members = append(s.Status.Members, MemberStatus{Node: m, State: state})
		}
		speakers = append(speakers, s)
	}
	return speakers
}

func TestAbsent(t *testing.T) {
	for _, tt := range []struct{ name, reports, dead, want string }{
		{name: "all there", reports: "a: b c, b: a c, c: a b"},
		{name: "alone", reports: "a:"},
		{name: "no speaker receives another", reports: "a:, b:, c:"},
		{name: "one of two is absent", reports: "a: -b, b: a", want: "b Silent"},
		{name: "of three one", reports: "a: b -c, b: a -c, c: a b", want: "c Silent"},
		{name: "and the others have been started since", reports: "a: b, b: a, c: a b", want: "c Silent"},
		{name: "it ended before it received any", reports: "a: b -c, b: a -c, c:", want: "c Silent"},
		{name: "it left and is back", reports: "a: b -c, b: a c, c: a b"},
		{name: "one after the other", reports: "a: -b -c, b: a c, c: a -b", want: "b Silent, c Silent"},
		{name: "many at once", reports: "a: b c -d -e, b: a c -d -e, c: a b -d -e, d: a b c e, e: a b c d", want: "d Silent, e Silent"},
		{name: "two of three at once cannot be distinguished from one that receives none", reports: "a: -b -c, b: a c, c: a b"},
		{name: "one receives none", reports: "a: -b -c -d, b: a c d, c: a b d, d: a b c"},
		{name: "the network is cut between two", reports: "a: -b, b: -a"},
		{name: "between three", reports: "a: b -c, b: a -c, c: -a -b"},
		{name: "one has just begun", reports: "a:, b: a c, c: a b"},
		{name: "a new node never received the absent one", reports: "a: -b c, b: a, c: a", want: "b Silent"},
		{name: "reported by itself", reports: "a!: b, b: a", want: "a Stopped"},
		{name: "all do", reports: "a!: b, b!: a", want: "a Stopped, b Stopped"},
		{name: "one that stopped does not count", reports: "a!: b, b: a, c: -b -a", want: "a Stopped, b Silent", dead: ""},
		{name: "a dead node does not count", reports: "a: b -c, b: a c, c: a b -d, d: a c", dead: "a", want: "d Silent"},
		{name: "entries of unknown nodes", reports: "a: gone -lost b, b: a"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			speakers := reported(tt.reports)
			for range 2 {
				var got []string
				for name, why := range Absent(speakers, func(node string) bool { return node != tt.dead }) {
					got = append(got, fmt.Sprintf("%s %s", name, why))
				}
				slices.Sort(got)
				if got := strings.Join(got, ", "); got != tt.want {
					t.Errorf("got %q, want %q", got, tt.want)
				}
				slices.Reverse(speakers)
			}
		})
	}
}

// TestAbsentPartial: in a large cluster each status lists eight neighbors, and a speaker of an earlier version all.
func TestAbsentPartial(t *testing.T) {
	const n = 100
	name := func(i int) string { return fmt.Sprintf("node-%03d", (i+n)%n) }
	var speakers []SpeakerStatus
	for i := range n {
		s := SpeakerStatus{}
		s.Name = name(i)
		for d := -MembersSome / 2; d <= MembersSome/2; d++ {
			if d != 0 {
				s.Status.Members = append(s.Status.Members, MemberStatus{Node: name(i + d), State: MemberAlive})
			}
		}
		if i == 50 { // it has not been upgraded
			s.Status.Members = nil
			for j := range n {
				if j != i {
					s.Status.Members = append(s.Status.Members, MemberStatus{Node: name(j), State: MemberAlive})
				}
			}
		}
		speakers = append(speakers, s)
	}
	if got := Absent(speakers, nil); len(got) > 0 {
		t.Errorf("all are there: %v", got)
	}
	lost := []int{7, 8, 49}
	for i := range speakers {
		for k := range speakers[i].Status.Members {
			for _, j := range lost {
				if m := &speakers[i].Status.Members[k]; m.Node == name(j) && !slices.Contains(lost, i) {
					m.State = MemberSilent
				}
			}
		}
	}
	if got := Absent(speakers, nil); len(got) != len(lost) {
		t.Errorf("%v lost: %v", lost, got)
	}
	for _, j := range lost {
		if !speakers[j].Partial(n) || speakers[50].Partial(n) || speakers[j].Partial(MembersAll+1) {
			t.Errorf("%s: which statuses list all is wrong", name(j))
		}
	}
}

// BenchmarkAbsent evaluates a thousand speakers.
func BenchmarkAbsent(b *testing.B) {
	const n = 1000
	speakers := make([]SpeakerStatus, n)
	for i := range speakers {
		speakers[i].Name = fmt.Sprintf("node-%04d", i)
		for j := range n {
			if j != i {
				speakers[i].Status.Members = append(speakers[i].Status.Members, MemberStatus{Node: fmt.Sprintf("node-%04d", j), State: MemberAlive})
			}
		}
	}
	for b.Loop() {
		if len(Absent(speakers, nil)) > 0 {
			b.Fatal("one is absent")
		}
	}
}
