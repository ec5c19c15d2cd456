# For the scripts beside this one, which source it.
# shellcheck shell=bash

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${CENOTE_VM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/cenote-openzfs-vm}
PATH=$PATH:/usr/sbin:/sbin

fail() {
	echo "openzfs-vm: $*" >&2
	exit 125
}

# The newest kernel on this machine that can be booted and has a ZFS module.
find_kernel() {
	local dir release
	for dir in $(printf '%s\n' /lib/modules/* | sort -rV); do
		release=${dir##*/}
		if [ -e "/boot/vmlinuz-$release" ] && grep -q '/zfs\.ko' "$dir/modules.dep" 2>/dev/null; then
			echo "$release"
			return
		fi
	done
	return 1
}

# Where the initial file system for that kernel is kept. Its name tells when it is out of date.
initrd_path() { # RELEASE
	local key
	key=$({
		cat "$here/initrd" "$here/guest-init"
		stat -c '%n %Y' "/lib/modules/$1/modules.dep"
	} | sha256sum | cut -c1-16)
	echo "$cache/initrd-$1-$key"
}
