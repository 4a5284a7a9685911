package v1alpha1

const (
	// MembersAll is the number of other speakers up to which a SpeakerStatus lists all of them.
	MembersAll = 32
	// MembersSome is how many it lists otherwise.
	MembersSome = 8
)

// Partial reports whether the status, one of n, does not list all other speakers.
func (s *SpeakerStatus) Partial(n int) bool {
	return n-1 > MembersAll && len(s.Status.Members) <= MembersSome
}

// Absence is why the last status of a speaker is outdated.
type Absence string

const (
	// AbsenceStopped: it announced its end.
	AbsenceStopped Absence = "Stopped"
	// AbsenceSilent: most of the others no longer receive it.
	AbsenceSilent Absence = "Silent"
)

// reception is how one speaker receives another, by its last status.
type reception byte

const (
	unknown reception = iota // never received since its process began
	silent
	received
)

// Absent returns the speakers that are gone, according to the last status of each. A status is written on change only,
// so its age has no meaning. live reports whose nodes are up (nil: all); the statuses of other nodes do not count.
//
// In a large cluster a status lists few members, which list it, too. A speaker is gone if more of the others lost it
// than receive it. A loss does not count if both lost each other: then the network between them is cut. Nor does the
// status of a speaker that is gone itself. Two cases cannot be found: the last speaker, and two of three that end at
// the same moment without notice, since the third might be the isolated one.
func Absent(speakers []SpeakerStatus, live func(node string) bool) map[string]Absence {
	n := len(speakers)
	absent, at := map[string]Absence{}, make(map[string]int, n)
	counts, views := make([]bool, n), make([]reception, n*n) // views[i*n+j]: how i receives j
	partial := make([]bool, n)
	for i := range speakers {
		name := speakers[i].Name
		at[name] = i
		if speakers[i].Status.Stopped != nil {
			absent[name] = AbsenceStopped
		}
		counts[i] = absent[name] == "" && (live == nil || live(name))
		partial[i] = speakers[i].Partial(n)
	}
	for i := range speakers {
		for _, m := range speakers[i].Status.Members {
			if j, known := at[m.Node]; known && j != i {
				views[i*n+j] = received
				if m.State == MemberSilent {
					views[i*n+j] = silent
				}
			}
		}
	}
	for {
		var unreachable []int
		for j := range speakers {
			missing := 0
			for i := range speakers {
				if !counts[i] {
					continue
				}
				switch here, back := views[i*n+j], views[j*n+i]; {
				case here == received:
					missing--
				case here == unknown && partial[i] && !partial[j]: // an earlier version lists all, and is not listed
				case here == silent && back != silent, here == unknown && back == received:
					missing++
				}
			}
			if missing > 0 && absent[speakers[j].Name] == "" {
				unreachable = append(unreachable, j)
			}
		}
		if len(unreachable) == 0 {
			return absent
		}
		for _, j := range unreachable {
			absent[speakers[j].Name], counts[j] = AbsenceSilent, false
		}
	}
}
