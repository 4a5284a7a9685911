// Package manifest reads the privileges of IronLB's containers from the manifests in deploy/, and starts programs with
// exactly these.
package manifest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// Privileges of a container.
type Privileges struct {
	Container  string
	Privileged bool
	// User and Group of the container's process.
	User, Group int64
	// Capabilities as manifests name them (NET_ADMIN), sorted. They have no meaning if Privileged.
	Capabilities    []string
	NoNewPrivileges bool
	// ReadOnlyRoot is set if the root file system is read-only.
	ReadOnlyRoot bool
	// Writable are the paths of volumes that the container may write to.
	Writable []string
}

// workload is the common part of kinds with a Pod template.
type workload struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Template corev1.PodTemplateSpec `json:"template"`
	} `json:"spec"`
}

// Read returns the privileges of the named container. It reads all YAML documents of all *.yaml files in the folder,
// and fails unless exactly one workload has such a container or init container.
func Read(dir, container string) (Privileges, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return Privileges{}, err
	}
	var found []Privileges
	for _, file := range files {
		all, err := workloads(file)
		if err != nil {
			return Privileges{}, fmt.Errorf("read %s: %w", file, err)
		}
		for _, w := range all {
			pod := w.Spec.Template.Spec
			for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
				if c.Name != container {
					continue
				}
				p, err := privileges(pod, c)
				if err != nil {
					return Privileges{}, fmt.Errorf("%s, %s %s, container %s: %w", file, w.Kind, w.Metadata.Name, c.Name, err)
				}
				found = append(found, p)
			}
		}
	}
	if len(found) != 1 {
		return Privileges{}, fmt.Errorf("%d workloads in %s/*.yaml have a container %s, want one", len(found), dir, container)
	}
	return found[0], nil
}

func workloads(file string) ([]workload, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	var all []workload
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		var meta struct {
			Kind string `json:"kind"`
		}
		if err := yaml.Unmarshal(document, &meta); err != nil {
			return nil, err
		}
		switch meta.Kind {
		case "DaemonSet", "Deployment", "StatefulSet", "Job":
			var w workload
			if err := yaml.Unmarshal(document, &w); err != nil {
				return nil, err
			}
			all = append(all, w)
		}
	}
}

// privileges applies the rules of Kubernetes: the container's securityContext overrides the Pod's.
func privileges(pod corev1.PodSpec, c corev1.Container) (Privileges, error) {
	p := Privileges{Container: c.Name}
	own, all := c.SecurityContext, pod.SecurityContext
	if own == nil {
		own = &corev1.SecurityContext{}
	}
	if all == nil {
		all = &corev1.PodSecurityContext{}
	}
	first := func(ids ...*int64) *int64 {
		i := slices.IndexFunc(ids, func(id *int64) bool { return id != nil })
		if i < 0 {
			return nil
		}
		return ids[i]
	}
	is := func(flag *bool) bool { return flag != nil && *flag }
	if user := first(own.RunAsUser, all.RunAsUser); user != nil {
		p.User = *user
	} else if is(own.RunAsNonRoot) || is(all.RunAsNonRoot) {
		return p, errors.New("runAsNonRoot is set without runAsUser: the user depends on the image; set runAsUser")
	}
	if group := first(own.RunAsGroup, all.RunAsGroup); group != nil {
		p.Group = *group
	}
	p.Privileged = is(own.Privileged)
	p.NoNewPrivileges = !p.Privileged && own.AllowPrivilegeEscalation != nil && !*own.AllowPrivilegeEscalation
	p.ReadOnlyRoot = is(own.ReadOnlyRootFilesystem)
	for _, m := range c.VolumeMounts {
		if !m.ReadOnly {
			p.Writable = append(p.Writable, m.MountPath)
		}
	}
	if p.Privileged {
		return p, nil
	}
	if own.Capabilities == nil || !slices.Contains(own.Capabilities.Drop, "ALL") {
		return p, errors.New("capabilities.drop has no ALL: the rest depends on the container runtime")
	}
	for _, capability := range own.Capabilities.Add {
		p.Capabilities = append(p.Capabilities, string(capability))
	}
	slices.Sort(p.Capabilities)
	return p, nil
}

// Argv returns the command that runs argv with the privileges: user, capabilities and no_new_privs. Root must run it,
// and for another user in a mount namespace of its own. Files named by argv are then below /mnt, readable by that user.
func (p Privileges) Argv(argv ...string) []string {
	if p.User == 0 {
		return p.setpriv(argv)
	}
	script, argv := p.lend(argv)
	return p.after(script, argv)
}

// Contained is Argv with the file system restrictions of a container: /proc/sys is read-only, and so is the root file
// system if the manifest requires it. The folders in writable stay writable. /run has only the files and folders of the
// manifest's volumes. Root must run the command in a mount namespace of its own.
func (p Privileges) Contained(writable []string, argv ...string) []string {
	if p.Privileged {
		return argv
	}
	script, argv := p.lend(argv)
	script = append(script,
		"mount --bind /proc/sys /proc/sys", "mount -o remount,bind,ro /proc/sys",
		"mount -t tmpfs -o mode=755 tmpfs /run")
	for _, path := range p.Writable {
		if rest, below := strings.CutPrefix(path, "/run/"); below {
			create := "mkdir -p /run/" + rest
			if strings.HasSuffix(rest, ".lock") {
				create = "touch /run/" + rest
			}
			script = append(script, create)
		}
	}
	if p.ReadOnlyRoot {
		for _, dir := range writable {
			script = append(script, fmt.Sprintf("mount --bind '%s' '%[1]s'", dir))
		}
		script = append(script, "mount -o remount,bind,ro /")
	}
	return p.after(script, argv)
}

// lend makes the files named by argv available to a user other than root, who cannot enter root's folders.
func (p Privileges) lend(argv []string) (script, lent []string) {
	if p.User == 0 {
		return nil, argv
	}
	script = []string{"mount -t tmpfs -o mode=755 tmpfs /mnt"}
	for i, arg := range argv {
		file, err := os.Stat(arg)
		if err == nil && filepath.IsAbs(arg) && file.Mode().IsRegular() {
			at := fmt.Sprintf("/mnt/%d-%s", i, filepath.Base(arg))
			if file.Mode()&0o111 != 0 {
				script = append(script, "touch "+at, fmt.Sprintf("mount --bind '%s' %s", arg, at))
			} else {
				script = append(script, fmt.Sprintf("install -m 0400 -o %d '%s' %s", p.User, arg, at))
			}
			arg = at
		}
		lent = append(lent, arg)
	}
	return script, lent
}

// after returns the command that runs the script and then argv with the privileges.
func (p Privileges) after(script, argv []string) []string {
	text := "set -e\n" + strings.Join(script, "\n") + "\nexec \"$@\""
	return append([]string{"sh", "-c", text, p.Container}, p.setpriv(argv)...)
}

func (p Privileges) setpriv(argv []string) []string {
	if p.Privileged {
		return argv
	}
	bounding := []string{"-all"}
	for _, c := range p.Capabilities {
		bounding = append(bounding, "+"+strings.ToLower(c))
	}
	// Container runtimes leave the inheritable and the ambient set empty: only the bounding set gives root its
	// capabilities.
	out := []string{"setpriv", "--inh-caps=-all", "--ambient-caps=-all", "--bounding-set=" + strings.Join(bounding, ",")}
	out = append(out, fmt.Sprintf("--reuid=%d", p.User), fmt.Sprintf("--regid=%d", p.Group), "--clear-groups")
	if p.NoNewPrivileges {
		out = append(out, "--no-new-privs")
	}
	return append(append(out, "--"), argv...)
}
