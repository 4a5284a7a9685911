package v1alpha1

// Absence is why what a speaker wrote last says nothing about now.
type Absence string

const (
	// AbsenceStopped: it said that it ends.
	AbsenceStopped Absence = "Stopped"
	// AbsenceSilent: more of the others have stopped hearing it than hear it.
	AbsenceSilent Absence = "Silent"
)

// hearing is how one speaker hears another, by what it wrote last.
type hearing byte

const (
	unknown hearing = iota // never heard since its process began
	silent
	heard
)

// Absent returns the speakers that are not there any more, as far as what all of them wrote last tells. It is written on change only, so
// that its age tells nothing. live tells whose nodes are up (nil: all); what the others wrote does not count.
//
// A speaker is gone if more of the others do not hear it than do. Who has lost somebody by whom he is lost as well does not count: that one
// wrote so after they parted, so the network between them is cut. Nor does who is gone himself. Not to be found by this are the last one,
// and two of three that end in the same moment without a word: it looks as if the third were deaf.
func Absent(speakers []SpeakerStatus, live func(node string) bool) map[string]Absence {
	n := len(speakers)
	absent, at := map[string]Absence{}, make(map[string]int, n)
	counts, views := make([]bool, n), make([]hearing, n*n) // views[i*n+j]: how i hears j
	for i := range speakers {
		name := speakers[i].Name
		at[name] = i
		if speakers[i].Status.Stopped != nil {
			absent[name] = AbsenceStopped
		}
		counts[i] = absent[name] == "" && (live == nil || live(name))
	}
	for i := range speakers {
		for _, m := range speakers[i].Status.Members {
			if j, known := at[m.Node]; known && j != i {
				views[i*n+j] = heard
				if m.State == MemberSilent {
					views[i*n+j] = silent
				}
			}
		}
	}
	for {
		var gone []int
		for j := range speakers {
			missing := 0
			for i := range speakers {
				if !counts[i] {
					continue
				}
				switch says, back := views[i*n+j], views[j*n+i]; {
				case says == heard:
					missing--
				case says == silent && back != silent, says == unknown && back == heard:
					missing++
				}
			}
			if missing > 0 && absent[speakers[j].Name] == "" {
				gone = append(gone, j)
			}
		}
		if len(gone) == 0 {
			return absent
		}
		for _, j := range gone {
			absent[speakers[j].Name], counts[j] = AbsenceSilent, false
		}
	}
}
