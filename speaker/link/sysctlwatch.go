package link

import (
	"strings"

	"golang.org/x/sys/unix"
)

// SysctlWatch checks repeatedly whether parameters are as wanted, with one system call each: it keeps their files open.
// The zero value checks none.
type SysctlWatch struct {
	want  []Sysctl
	files []int
}

// Open replaces the parameters to check, in the network namespace of the calling thread; an empty list closes all
// files.
func (m *SysctlWatch) Open(want []Sysctl) {
	for _, fd := range m.files {
		unix.Close(fd)
	}
	m.want, m.files = nil, nil
	for _, s := range want {
		fd, err := unix.Open(s.path(), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			m.Open(nil)
			return
		}
		m.want, m.files = append(m.want, s), append(m.files, fd)
	}
}

// Met reports whether there are any parameters, and all are as wanted. Reading fails when a parameter is gone, as
// with a module or an interface.
func (m *SysctlWatch) Met() bool {
	var value [128]byte
	for i, s := range m.want {
		n, err := unix.Pread(m.files[i], value[:], 0)
		if err != nil || !s.met(strings.TrimSpace(string(value[:n]))) {
			return false
		}
	}
	return len(m.want) > 0
}
