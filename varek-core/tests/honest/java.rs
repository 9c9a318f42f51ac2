//! The JVM, under the preset `java`.

use std::sync::LazyLock;

use varek_core::{Command, MIB, Policy, Sandbox};

use crate::support;
use crate::{assert_honest, patient, program_or_return, sandbox};

/// One class, so that it is compiled once and there is one file of it.
const MAIN: &str = r#"
import java.nio.file.*;
import java.util.*;
import java.util.concurrent.*;
import java.util.stream.*;
import java.util.zip.*;

public class Main {
    static volatile Object sink;
    public static void main(String[] arguments) throws Exception {
        if (arguments.length > 0) { garbage(); return; }
        ExecutorService pool = Executors.newFixedThreadPool(4);
        List<Future<Integer>> squares = new ArrayList<>();
        for (int i = 0; i < 20; i++) { final int n = i; squares.add(pool.submit(() -> n * n)); }
        int sum = 0;
        for (Future<Integer> square : squares) sum += square.get();
        pool.shutdown();
        System.out.println(sum + " " + IntStream.range(0, 1000).parallel().sum());
        for (int i = 0; i < 64; i++) sink = new byte[1 << 20];
        System.gc();
        try (ZipOutputStream zip = new ZipOutputStream(Files.newOutputStream(Paths.get("a.zip")))) {
            zip.putNextEntry(new ZipEntry("entry")); zip.write("zipped".getBytes());
        }
        try (ZipFile zip = new ZipFile("a.zip")) {
            System.out.println(new String(zip.getInputStream(zip.getEntry("entry")).readAllBytes()));
        }
        Path temporary = Files.createTempFile("a", "b");
        Files.writeString(temporary, "x"); System.out.println(Files.size(temporary)); Files.delete(temporary);
        System.out.println(java.time.ZonedDateTime.of(2024, 1, 1, 0, 0, 0, 0, java.time.ZoneId.of("Europe/Berlin")).toInstant());
        System.out.println(UUID.randomUUID().version());
        try { new ProcessBuilder("/bin/echo", "ran").start(); } catch (java.io.IOException e) { System.out.println("refused"); }
    }
    /** Some twice the memory of the run, none of which is kept. */
    static void garbage() {
        for (int i = 0; i < 2048; i++) { byte[] bytes = new byte[1 << 20]; bytes[i] = 1; sink = bytes; }
        System.out.println("through");
    }
}
"#;

/// The compiled class, made once.
static CLASS: LazyLock<Result<Vec<u8>, String>> = LazyLock::new(|| {
    let directory = support::open_directory();
    let source = directory.path().join("Main.java");
    std::fs::write(&source, MAIN).unwrap();
    // The quick compiler of the JVM suffices for one file, and nothing is left in /tmp.
    let compiled = std::process::Command::new("javac")
        .args([
            "-J-XX:TieredStopAtLevel=1",
            "-J-XX:-UsePerfData",
            "-proc:none",
            "-d",
        ])
        .args([directory.path(), &source])
        .output();
    match compiled {
        Ok(output) if output.status.success() => {
            Ok(std::fs::read(directory.path().join("Main.class")).unwrap())
        }
        Ok(output) => Err(format!(
            "javac: {}",
            String::from_utf8_lossy(&output.stderr)
        )),
        Err(error) => Err(format!("javac: {error}")),
    }
});

/// The class, or `None`, which is said, where this host cannot compile it.
fn class(test: &str) -> Option<&'static [u8]> {
    match &*CLASS {
        Ok(class) => Some(class),
        Err(reason) => {
            support::not_run(test, reason);
            None
        }
    }
}

fn run(sandbox: &Sandbox, class: &[u8], arguments: &[&str]) -> varek_core::Outcome {
    let command = Command::new("java")
        .args(["-cp", ".", "Main"])
        .args(arguments);
    sandbox.run(command.file("Main.class", class)).unwrap()
}

#[test]
fn the_jvm_starts_and_says_what_it_is() {
    program_or_return!("java");
    let sandbox = sandbox!(patient(Policy::java()));
    let outcome = sandbox.run(Command::new("java").arg("-version")).unwrap();
    assert_honest(&outcome, "", &[]);
    let stderr = outcome.stderr.to_text();
    assert!(stderr.contains(" version \""), "{stderr}");
}

#[test]
fn threads_collection_and_zip_files_work() {
    program_or_return!("java");
    let Some(class) = class(crate::test_name!()) else {
        return;
    };
    let sandbox = sandbox!(patient(Policy::java()));
    let outcome = run(&sandbox, class, &[]);
    assert_honest(
        &outcome,
        "2470 499500\nzipped\n1\n2023-12-31T23:00:00Z\n4\nrefused\n",
        &["clone"],
    );
    // Before the child that was refused: the network library, which java.nio loads, tried whether there is IPv4 and IPv6.
    assert_eq!(
        outcome.violation().and_then(|v| v.syscall()),
        Some("socket")
    );
}

#[test]
fn garbage_is_collected_within_the_memory_of_the_run() {
    program_or_return!("java");
    let Some(class) = class(crate::test_name!()) else {
        return;
    };
    let sandbox = sandbox!(patient(Policy::java()));
    let outcome = run(&sandbox, class, &["garbage"]);
    assert_honest(&outcome, "through\n", &[]);
    let peak = outcome.usage.memory_peak.unwrap_or(0);
    assert!(peak < 700 * MIB, "{outcome}");
}
